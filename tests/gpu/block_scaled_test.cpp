// The passes around block-scaled products (kernels/block_scaled/block_scaled_cuda.hpp) against the host, bit
// for bit. The products themselves are cuBLASLt's and Blackwell's.
#include <algorithm>
#include <vector>

#include "device/thread_pool.hpp"
#include "gpu.hpp"
#include "hard_values.hpp"
#include "kernels/block_scaled/block_scaled_cuda.hpp"
#include "kernels/block_scaled/outer_scale.hpp"
#include "kernels/formats/swizzle.hpp"
#include "support/catch.hpp"

using namespace accord;
namespace cuda = accord::kernels::cuda;
using gpu_test::different;
using gpu_test::Gpu;

namespace {

constexpr int64_t kTileRows = 128;

// Bytes that differ from their neighbours.
std::vector<uint8_t> bytes(int64_t count, uint32_t seed) {
  std::vector<uint8_t> out(static_cast<size_t>(count));
  for (uint8_t& byte : out) {
    seed = seed * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(seed >> 24);
  }
  return out;
}

}  // namespace

TEST_CASE("scale tiles are the host's") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const int64_t rows : {1, 33, 128, 300, 4096}) {
    for (const int64_t inner : {2, 4, 18, 64, 129}) {
      CAPTURE(rows, inner);
      const std::vector<uint8_t> scales = bytes(rows * inner, 1);
      std::vector<uint8_t> want(static_cast<size_t>(formats::swizzled_scale_size(rows, inner)));
      formats::swizzle_scales(scales.data(), rows, inner, want.data());
      const Memory from = gpu->upload(scales);
      const Memory tiles = gpu->allocate(want.size());
      cuda::tile_scales(from.as<uint8_t>(), rows, inner, tiles.as<uint8_t>(), gpu->handle());
      CHECK(different(gpu->download<uint8_t>(tiles, want.size()), want) == 0);
    }
  }
}

TEST_CASE("rows of experts are packed into tiles of their own") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const std::vector<int32_t> offsets = {0, 0, 5, 5, 200, 328, 329};  // experts without rows, too
  const auto experts = static_cast<int32_t>(offsets.size() - 1);
  const int64_t sorted = offsets.back();
  const int64_t rows = 150;
  const int64_t row_bytes = 304;
  const int64_t inner = 19;
  const std::vector<uint8_t> codes = bytes(sorted * row_bytes, 2);
  const std::vector<uint8_t> scales = bytes(sorted * inner, 3);
  std::vector<int32_t> gather(static_cast<size_t>(sorted));
  for (size_t i = 0; i < gather.size(); ++i)
    gather[i] = static_cast<int32_t>(i * 37 % static_cast<size_t>(rows));
  const Memory device_codes = gpu->upload(codes);
  const Memory device_scales = gpu->upload(scales);
  const Memory device_offsets = gpu->upload(offsets);
  const Memory device_gather = gpu->upload(gather);
  const int32_t bound = cuda::group_tiles_bound(sorted, experts, kTileRows);
  const Memory list = gpu->allocate(static_cast<size_t>(cuda::group_list_size(sorted, experts, kTileRows)) *
                                    sizeof(cuda::GroupTile));
  const Memory count = gpu->allocate(sizeof(int32_t));
  cuda::build_group_tiles(device_offsets.as<int32_t>(), experts, kTileRows, list.as<cuda::GroupTile>(),
                          count.as<int32_t>(), gpu->handle());
  for (const bool gathered : {false, true}) {
    CAPTURE(gathered);
    std::vector<uint8_t> want_codes;
    std::vector<uint8_t> want_tiles;
    for (int32_t e = 0; e < experts; ++e) {
      for (int32_t begin = offsets[static_cast<size_t>(e)]; begin < offsets[static_cast<size_t>(e) + 1];
           begin += kTileRows) {
        const int32_t end = std::min<int32_t>(begin + kTileRows, offsets[static_cast<size_t>(e) + 1]);
        std::vector<uint8_t> tile_codes(static_cast<size_t>(kTileRows * row_bytes), 0);
        std::vector<uint8_t> tile_scales(static_cast<size_t>(kTileRows * inner), 0);
        for (int32_t r = begin; r < end; ++r) {
          const int64_t from = gathered ? gather[static_cast<size_t>(r)] : r;
          std::copy_n(codes.begin() + from * row_bytes, row_bytes,
                      tile_codes.begin() + (r - begin) * row_bytes);
          std::copy_n(scales.begin() + from * inner, inner, tile_scales.begin() + (r - begin) * inner);
        }
        std::vector<uint8_t> tiles(static_cast<size_t>(formats::swizzled_scale_size(kTileRows, inner)));
        formats::swizzle_scales(tile_scales.data(), kTileRows, inner, tiles.data());
        want_codes.insert(want_codes.end(), tile_codes.begin(), tile_codes.end());
        want_tiles.insert(want_tiles.end(), tiles.begin(), tiles.end());
      }
    }
    const Memory packed = gpu->allocate(static_cast<size_t>(bound * kTileRows * row_bytes));
    const Memory tiles =
        gpu->allocate(static_cast<size_t>(bound * formats::swizzled_scale_size(kTileRows, inner)));
    const cuda::QuantizedMatrix x{device_codes.as<uint8_t>(), device_scales.as<uint8_t>(),
                                  gathered ? rows : sorted, row_bytes, inner};
    cuda::pack_expert_rows(x, gathered ? device_gather.as<int32_t>() : nullptr, list.as<cuda::GroupTile>(),
                           count.as<int32_t>(), bound, packed.as<uint8_t>(), tiles.as<uint8_t>(),
                           gpu->handle());
    CHECK(different(gpu->download<uint8_t>(packed, want_codes.size()), want_codes) == 0);
    CHECK(different(gpu->download<uint8_t>(tiles, want_tiles.size()), want_tiles) == 0);
  }
}

TEST_CASE("outer scales go onto sums as the contract orders") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(2);
  const int64_t rows = 96;
  for (const int64_t cols : {16, 304}) {
    const auto size = static_cast<size_t>(rows * cols);
    std::vector<float> sums(size);
    gpu_test::fill_hard(7, rows, cols, sums.data(), pool);
    std::vector<float> x_outer(static_cast<size_t>(rows));
    gpu_test::fill_hard(8, 1, rows, x_outer.data(), pool);
    std::vector<int32_t> x_rows(static_cast<size_t>(rows));
    for (size_t i = 0; i < x_rows.size(); ++i) x_rows[i] = static_cast<int32_t>(i * 29 % x_rows.size());
    const std::vector<float> w_outer = {0.7371F};
    const Memory device_sums = gpu->upload(sums);
    const Memory device_x = gpu->upload(x_outer);
    const Memory device_rows = gpu->upload(x_rows);
    const Memory device_w = gpu->upload(w_outer);
    for (const bool mapped : {false, true}) {
      std::vector<float> want(size);
      std::vector<BF16> want_bf16(size);
      for (int64_t r = 0; r < rows; ++r) {
        const float scale = x_outer[static_cast<size_t>(mapped ? x_rows[static_cast<size_t>(r)] : r)];
        for (int64_t c = 0; c < cols; ++c) {
          const auto at = static_cast<size_t>(r * cols + c);
          want[at] = kernels::block_scaled::apply_outer_scales(sums[at], scale, w_outer[0]);
          want_bf16[at] = to_bf16(want[at]);
        }
      }
      const int32_t* const map = mapped ? device_rows.as<int32_t>() : nullptr;
      for (const int64_t stride : {cols, cols + 3}) {  // rows that are aligned, and not
        CAPTURE(cols, mapped, stride);
        const Memory y = gpu->allocate(static_cast<size_t>(rows * stride) * 2);
        cuda::apply_outer_scales(device_sums.as<float>(), device_x.as<float>(), map, device_w.as<float>(),
                                 {y.data(), Dtype::kBF16, rows, cols, stride}, gpu->handle());
        const auto all = gpu->download<BF16>(y, static_cast<size_t>(rows * stride));
        std::vector<BF16> got;
        for (int64_t r = 0; r < rows; ++r) {
          got.insert(got.end(), all.begin() + r * stride, all.begin() + r * stride + cols);
        }
        CHECK(different(got, want_bf16) == 0);
      }
      const Memory y = gpu->allocate(size * sizeof(float));
      cuda::apply_outer_scales(device_sums.as<float>(), device_x.as<float>(), map, device_w.as<float>(),
                               {y.data(), Dtype::kF32, rows, cols, cols}, gpu->handle());
      CHECK(different(gpu->download<float>(y, size), want) == 0);
    }
  }
}
