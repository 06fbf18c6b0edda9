#include "tests/emulation/launch.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/log.hpp"
#include "tests/emulation/memory.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::emulation {
namespace {

[[noreturn]] void fail(const char* kernel, const std::string& what) {
  log::error("{}: {}", kernel, what);
  std::abort();
}

}  // namespace

Launch::Launch(const char* kernel, StreamHandle stream) : kernel_(kernel), device_(current_device()) {
  if (stream == nullptr) fail(kernel, "its stream is the default one, which waits for no other");
  if (device_of(stream) != device_) {
    fail(kernel, fmt::format("its stream is one of cuda:{}, but the thread's device is cuda:{}",
                             device_of(stream), device_));
  }
  if (is_capturing(stream)) fail(kernel, "its emulation does not record itself (streams.hpp)");
}

void* Launch::bytes_at(const void* p, int64_t bytes, size_t alignment) const {
  if (bytes < 0) fail(kernel_, fmt::format("an argument of {} bytes", bytes));
  if (bytes == 0) return nullptr;
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) fail(kernel_, fmt::format("{} is misaligned", p));
  void* memory = resolve(device_, p, static_cast<size_t>(bytes));
  if (memory == nullptr) {
    fail(kernel_,
         fmt::format("the {} bytes at {} are not {} cuda:{}", bytes, p,
                     is_device_address(p) ? "within one allocation on" : "device memory, least of all of",
                     device_));
  }
  return memory;
}

MatrixView Launch::at(const MatrixView& x, int64_t rows) const {
  MatrixView y = x;
  needs(x.rows >= 0 && x.cols >= 0, "a matrix of no negative size");
  const int64_t elements = rows == 0 || x.cols == 0 ? 0 : (rows - 1) * x.stride + x.cols;
  needs(rows <= 1 || x.cols == 0 || x.stride >= x.cols, "rows that do not overlap");
  y.data = bytes_at(x.data, elements * size_of(x.dtype), static_cast<size_t>(size_of(x.dtype)));
  return y;
}

MatrixView Launch::at(const MatrixView& x) const { return at(x, x.rows); }

void Launch::needs(bool holds, const char* condition) const {
  if (!holds) fail(kernel_, fmt::format("needs {}; the caller must check before it calls", condition));
}

void Launch::aligned(const void* p, size_t bytes, const char* name) const {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0) {
    fail(kernel_, fmt::format("{} = {} is not aligned to {} bytes", name, p, bytes));
  }
}

void Launch::aligned_rows(const MatrixView& x, size_t bytes, const char* name) const {
  if (x.rows == 0 || x.cols == 0) return;
  aligned(x.data, bytes, name);
  if (x.rows > 1 && static_cast<size_t>(x.stride * size_of(x.dtype)) % bytes != 0) {
    fail(kernel_,
         fmt::format("rows of {} are {} elements apart, not a multiple of {} bytes", name, x.stride, bytes));
  }
}

void Launch::poison(const void* p, int64_t bytes) const {
  if (bytes > 0) std::memset(bytes_at(p, bytes, 1), kPoison, static_cast<size_t>(bytes));
}

}  // namespace accord::emulation

namespace accord {

// Launches run at once and fail by ending the process.
void check_launch(const char* /*kernel*/) {}

void require(bool holds, const char* condition) {
  if (!holds)
    emulation::fail("a CUDA kernel",
                    fmt::format("needs {}; the caller must check before it calls", condition));
}

int num_multiprocessors() { return emulation::kMultiprocessors; }

}  // namespace accord
