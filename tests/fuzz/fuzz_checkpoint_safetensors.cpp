// A safetensors file is parsed or refused; what is accepted lies inside the file and tiles it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "checkpoint/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accord::checkpoint;
  const auto index = parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
  if (!index.ok()) {
    return 0;
  }
  const auto* end = reinterpret_cast<const std::byte*>(data) + size;
  const std::byte* next = nullptr;
  for (const TensorInfo& tensor : index->tensors) {
    if (tensor.data + tensor.bytes > end || (next != nullptr && tensor.data != next)) {
      std::abort();
    }
    next = tensor.data + tensor.bytes;
    float first = 0.0F;
    if (tensor.numel() > 0) {
      (void)convert_to_f32(tensor, tensor.numel() - 1, std::span(&first, 1));
    }
  }
  return next != nullptr && next != end ? (std::abort(), 0) : 0;
}
