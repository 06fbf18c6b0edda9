#include "kernels/formats/ieee_mode.hpp"

#include <immintrin.h>

namespace accord::formats {
namespace {
constexpr unsigned kDefaultMode = 0x1f80;  // all exceptions masked, to nearest, FTZ and DAZ off
}

IeeeMode::IeeeMode() : saved_(_mm_getcsr()) { _mm_setcsr(kDefaultMode); }
IeeeMode::~IeeeMode() { _mm_setcsr(saved_); }

}  // namespace accord::formats
