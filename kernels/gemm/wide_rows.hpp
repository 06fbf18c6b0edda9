#pragma once
// Wide tiles of grouped products, the second list of build_group_tiles. Not for other folders.
#include <cstdint>

#include "kernels/math/host_device.hpp"

namespace accord::kernels::cuda {

// Rows of a wide tile at most.
constexpr int32_t kWideRows = 272;

// Rows of the wide tiles of an expert that has `rows`: nearly equal parts, rounded up to a multiple of 16.
ACCORD_HOST_DEVICE inline int32_t wide_rows(int32_t rows) {
  const int32_t parts = (rows + kWideRows - 1) / kWideRows;
  return parts == 0 ? 16 : ((rows + parts - 1) / parts + 15) / 16 * 16;
}

}  // namespace accord::kernels::cuda
