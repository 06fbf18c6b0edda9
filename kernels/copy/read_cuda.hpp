#pragma once
// The read that a product of few rows cannot beat, to measure one by: every byte of the weights of `count`
// experts once, 16 bytes a load, eight loads in flight a thread.
#include <cstdint>

#include "kernels/gemm/gemm_cuda.hpp"

namespace accord::kernels::cuda {

// `experts`: device memory; data_bytes and scale_bytes of each, multiples of 16 (scale_bytes may be 0).
// `sink`: one word of device memory.
void plain_read(const GemmWeight* experts, int32_t count, int64_t data_bytes, int64_t scale_bytes,
                uint32_t* sink, StreamHandle stream);

}  // namespace accord::kernels::cuda
