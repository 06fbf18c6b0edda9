#include "controller/weight_tiles.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <utility>

#include "device/buffer.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "weights/quantize.hpp"

namespace accord::controller {
namespace {

constexpr int64_t kTileElements = int64_t{1} << 18;  // fits a core's cache with what becomes of it
constexpr int64_t kTileRows = 16;                    // a 16x16 block is never cut
constexpr size_t kTilesAtATime = 256;                // then the source's memory is released
constexpr uint16_t kMagnitude = 0x7fff;
constexpr uint16_t kInf = 0x7f80;

int64_t cols_of(const ParamSpec& spec) { return spec.shape.empty() ? 1 : spec.shape.back(); }

uint16_t largest_magnitude(std::span<const BF16> values) {
  uint16_t largest = 0;
  for (const BF16 value : values) {
    largest = std::max<uint16_t>(largest, value.bits & kMagnitude);
  }
  return largest;
}

}  // namespace

// What one thread needs for one tile.
struct WeightTiles::Scratch {
  Buffer input;
  Buffer data;
  Buffer scales;

  void reserve(size_t count) {
    input.ensure(count * sizeof(float));  // of fp32, or of BF16
    data.ensure(count);
    scales.ensure(count / formats::kNvfp4Block + 1);
  }
};

struct WeightTiles::Shelf {
  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> free;
};

class WeightTiles::Borrowed {
 public:
  explicit Borrowed(Shelf& shelf) : shelf_(shelf) {
    const std::lock_guard lock(shelf_.mutex);
    if (shelf_.free.empty()) {
      scratch_ = std::make_unique<Scratch>();
    } else {
      scratch_ = std::move(shelf_.free.back());
      shelf_.free.pop_back();
    }
  }
  ~Borrowed() {
    const std::lock_guard lock(shelf_.mutex);
    shelf_.free.push_back(std::move(scratch_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Scratch& operator*() { return *scratch_; }

 private:
  Shelf& shelf_;
  std::unique_ptr<Scratch> scratch_;
};

WeightTiles::WeightTiles(const checkpoint::HfCheckpoint& source, ThreadPool& pool)
    : source_(source), pool_(pool), shelf_(std::make_unique<Shelf>()) {}
WeightTiles::~WeightTiles() = default;

void WeightTiles::add(const ParamSpec& spec, const TileFormat& format, std::vector<WeightTile>& tiles) const {
  const int64_t cols = cols_of(spec);
  const int64_t rows = spec.numel() / cols;
  const int64_t height = std::max<int64_t>(kTileElements / cols / kTileRows, 1) * kTileRows;
  const size_t weight = tiles.empty() ? 0 : tiles.back().weight + 1;
  for (int64_t begin = 0; begin < rows; begin += height) {
    tiles.push_back({weight, &spec, format, begin, std::min(height, rows - begin)});
  }
  source_.prefetch(*source_.stored(spec.name), 0, rows);
}

Status WeightTiles::run(std::span<const WeightTile> tiles,
                        const std::function<Status(size_t, Scratch&)>& work) const {
  std::vector<Status> statuses(tiles.size());
  for (size_t begin = 0; begin < tiles.size(); begin += kTilesAtATime) {
    const size_t count = std::min(kTilesAtATime, tiles.size() - begin);
    pool_.parallel_for(static_cast<int64_t>(count), [&](int64_t i) {
      const size_t index = begin + static_cast<size_t>(i);
      Borrowed scratch(*shelf_);
      statuses[index] = work(index, *scratch);
    });
    source_.release_all();
  }
  const auto bad = std::find_if(statuses.begin(), statuses.end(), [](const Status& s) { return !s.ok(); });
  return bad == statuses.end() ? absl::OkStatus() : *bad;
}

// The tile as fp32 in scratch.input: what no format rounds.
StatusOr<std::span<const std::byte>> WeightTiles::read_exact(const WeightTile& tile, Scratch& scratch) const {
  const int64_t cols = cols_of(*tile.spec);
  const auto count = static_cast<size_t>(tile.rows * cols);
  scratch.reserve(count);
  const std::span<float> values(scratch.input.as<float>(), count);
  ACCORD_RETURN_IF_ERROR(source_.read_f32(tile.spec->name, tile.row_begin * cols, values));
  source_.release(*source_.stored(tile.spec->name), tile.row_begin, tile.rows);
  return std::as_bytes(values);
}

// The tile as BF16 in scratch.input; returns its largest magnitude.
StatusOr<float> WeightTiles::read(const WeightTile& tile, Scratch& scratch) const {
  const int64_t cols = cols_of(*tile.spec);
  const auto count = static_cast<size_t>(tile.rows * cols);
  scratch.reserve(count);
  const std::span<BF16> values(scratch.input.as<BF16>(), count);
  ACCORD_RETURN_IF_ERROR(source_.read_bf16(tile.spec->name, tile.row_begin * cols, values));
  source_.release(*source_.stored(tile.spec->name), tile.row_begin, tile.rows);
  const uint16_t largest = largest_magnitude(values);
  if (largest >= kInf) {
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](BF16 value) { return (value.bits & kMagnitude) >= kInf; });
    const int64_t at = bad - values.begin();
    return data_error(
        "{}: tensor '{}', row {}, column {} is {}: weights must be finite in bfloat16; use a "
        "checkpoint that is",
        source_.file_of(tile.spec->name), tile.spec->name, tile.row_begin + at / cols, at % cols,
        to_float(*bad));
  }
  return to_float(BF16{largest});
}

StatusOr<std::vector<float>> WeightTiles::amax(std::span<const WeightTile> tiles) const {
  std::vector<float> result(tiles.size());
  ACCORD_RETURN_IF_ERROR(run(tiles, [&](size_t i, Scratch& scratch) -> Status {
    ACCORD_ASSIGN_OR_RETURN(result[i], read(tiles[i], scratch));
    return absl::OkStatus();
  }));
  return result;
}

Status WeightTiles::for_each(std::span<const WeightTile> tiles,
                             const std::function<Status(const WeightTile&, const TileBytes&)>& take) const {
  return run(tiles, [&](size_t i, Scratch& scratch) -> Status {
    const WeightTile& tile = tiles[i];
    const WeightFormat format = tile.format.row == nullptr ? WeightFormat::kBF16 : tile.format.row->format;
    if (format == WeightFormat::kF32) {
      ACCORD_ASSIGN_OR_RETURN(const std::span<const std::byte> exact, read_exact(tile, scratch));
      return take(tile, {exact, {}});
    }
    ACCORD_RETURN_IF_ERROR(read(tile, scratch).status());
    const int64_t cols = cols_of(*tile.spec);
    const auto count = static_cast<size_t>(tile.rows * cols);
    auto* input = scratch.input.as<BF16>();
    if (format == WeightFormat::kBF16) {
      return take(tile, {std::as_bytes(std::span(input, count)), {}});
    }
    auto* data = scratch.data.as<uint8_t>();
    auto* scales = scratch.scales.as<uint8_t>();
    const MatrixView view = matrix_view(input, tile.rows, cols);
    size_t data_bytes = count;
    size_t scale_bytes = count / formats::kMxfp8Block;
    if (format == WeightFormat::kMXFP8) {
      formats::quantize_mxfp8_rows(view, data, scales, formats::Element::kE4M3);
    } else {
      float unused = 0.0F;  // the quantizer hands back the A that it was given
      formats::quantize_nvfp4(view, weights::nvfp4_weight_options(*tile.format.row), {data, scales, &unused},
                              &tile.format.outer);
      data_bytes = count / 2;
      scale_bytes = count / formats::kNvfp4Block;
    }
    return take(tile,
                {std::as_bytes(std::span(data, data_bytes)), std::as_bytes(std::span(scales, scale_bytes))});
  });
}

}  // namespace accord::controller
