"""Decodes the checkpoints that accord convert writes, with numpy and from docs/contract.md alone."""
import numpy

F32 = numpy.float32
E2M1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)


def e4m3(codes):
    codes = codes.astype(numpy.int32)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    value = numpy.where(exponent == 0, mantissa / 8.0 * 2.0 ** -6, (1 + mantissa / 8.0) * 2.0 ** (exponent - 7.0))
    value = numpy.where((codes & 127) == 127, numpy.nan, value)
    return numpy.where(codes & 128, -value, value).astype(F32)


def to_bf16(values):
    bits = values.astype(F32).view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def from_bf16(data):
    return (numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << 16).view(F32)


def mxfp8(data, scales, shape):
    exponents = numpy.frombuffer(scales, numpy.uint8).astype(numpy.float64).reshape(-1, 1) - 127
    values = e4m3(numpy.frombuffer(data, numpy.uint8)).reshape(-1, 32)
    return (values * numpy.exp2(exponents)).astype(F32).reshape(shape)


def nvfp4(data, scales, scale_2, shape):
    packed = numpy.frombuffer(data, numpy.uint8)
    values = E2M1[numpy.stack([packed & 15, packed >> 4], axis=-1)].reshape(-1, 16)
    outer = from_bf16(to_bf16(F32(2688) * numpy.frombuffer(scale_2, F32)).tobytes())  # A
    block = e4m3(numpy.frombuffer(scales, numpy.uint8)).reshape(-1, 1)
    factor = (block * outer).astype(F32) * numpy.array(0x39c30c31, numpy.uint32).view(F32)
    return (values * factor.astype(F32)).astype(F32).reshape(shape)


def decode(tensors):
    """{name: (dtype, shape, bytes)} -> {weight: fp32 values}"""
    values = {}
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "BF16":
            values[name] = from_bf16(data).reshape(shape)
        elif name.endswith("e_score_correction_bias"):
            values[name] = numpy.frombuffer(data, F32).reshape(shape)
        elif name + "_scale_inv" in tensors:
            values[name] = mxfp8(data, tensors[name + "_scale_inv"][2], shape)
        elif name + "_scale_2" in tensors:
            values[name] = nvfp4(data, tensors[name + "_scale"][2], tensors[name + "_scale_2"][2],
                                 [shape[0], shape[1] * 2])
    return values
