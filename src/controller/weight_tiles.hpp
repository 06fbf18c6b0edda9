#pragma once
// Weights of a checkpoint in tiles of rows: read as BF16, quantized, handed on, and forgotten. Tiles are
// independent, so neither the number of threads nor the size of a tile changes a byte. What conversion and
// verification share.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "device/thread_pool.hpp"
#include "precision/plan.hpp"

namespace accord::controller {

// How tiles of a weight are quantized; no row: not at all.
struct TileFormat {
  const precision::PlanRow* row = nullptr;
  float outer = 0.0F;  // NVFP4: A of the unit
};

struct WeightTile {
  size_t weight = 0;  // the number of its add()
  const ParamSpec* spec = nullptr;
  TileFormat format;
  int64_t row_begin = 0;
  int64_t rows = 0;
};

// Of one tile: elements, and block scales if it is quantized. They live for the call only.
struct TileBytes {
  std::span<const std::byte> data;
  std::span<const std::byte> scales;
};

class WeightTiles {
 public:
  WeightTiles(const checkpoint::HfCheckpoint& source, ThreadPool& pool);
  ~WeightTiles();

  // Cuts a weight into tiles of a multiple of 16 rows.
  void add(const ParamSpec& spec, const TileFormat& format, std::vector<WeightTile>& tiles) const;

  // Calls take(tile, Q(bf16(values))), several at a time (fp32 rows of a plan: the values themselves). The
  // first error in the order of tiles is returned. A value that is not finite in BF16 is an error that names
  // tensor, row and column.
  Status for_each(std::span<const WeightTile> tiles,
                  const std::function<Status(const WeightTile&, const TileBytes&)>& take) const;

  // max |bf16(value)| per tile; the same error.
  StatusOr<std::vector<float>> amax(std::span<const WeightTile> tiles) const;

 private:
  struct Scratch;
  class Borrowed;
  struct Shelf;
  Status run(std::span<const WeightTile> tiles, const std::function<Status(size_t, Scratch&)>& work) const;
  StatusOr<std::span<const std::byte>> read_exact(const WeightTile& tile, Scratch& scratch) const;
  StatusOr<float> read(const WeightTile& tile, Scratch& scratch) const;

  const checkpoint::HfCheckpoint& source_;
  ThreadPool& pool_;
  std::unique_ptr<Shelf> shelf_;
};

}  // namespace accord::controller
