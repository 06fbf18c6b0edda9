// Products (gemm_cuda.hpp) over the CPU's rows of products: an output depends on its own row and column
// alone, as on the GPU, but its sum has the CPU's order (forward: gemm.hpp; dgrad, wgrad: one fused
// multiply-add per l, ascending). ACCORD_EMULATED_PRODUCTS=exact: the tensor core's bits (exact.hpp), and the
// pace of computing those.
#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "kernels/formats/decode.hpp"
#include "kernels/gemm/exact.hpp"
#include "kernels/gemm/fragments.hpp"
#include "kernels/gemm/fragments_cuda.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/gemm/wide_rows.hpp"
#include "kernels/math/simd.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/rows.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::Launch;

constexpr int64_t kPanel = 64;  // rows of B that are decoded together
constexpr size_t kVectorBytes = 16;

bool exact_products() {
  const char* text = std::getenv("ACCORD_EMULATED_PRODUCTS");
  return text != nullptr && std::string_view(text) == "exact";
}

void store_result(const std::vector<float>& row, const GemmOutput& c, const MatrixView& out, int64_t at) {
  if (c.bf16) {
    emulation::store_row(row.data(), out.cols, out.row<BF16>(at));
    return;
  }
  float* to = out.row<float>(at);
  for (int64_t j = 0; j < out.cols; ++j) {
    to[j] = c.accumulate ? to[j] + row[static_cast<size_t>(j)] : row[static_cast<size_t>(j)];
  }
}

MatrixView output_view(const Launch& launch, const GemmOutput& c, void* data, int64_t m, int64_t n) {
  return launch.at(MatrixView{data, c.bf16 ? Dtype::kBF16 : Dtype::kF32, m, n, c.ld});
}

// ---- forward ----------------------------------------------------------------------------------------------

// A weight's bytes, where they lie.
GemmWeight weight_at(const Launch& launch, WeightFormat format, const GemmWeight& w, int64_t n, int64_t k) {
  launch.aligned(w.data, kVectorBytes, "B");
  GemmWeight at;
  switch (format) {
    case WeightFormat::kBF16:
      at.data = launch.bytes(w.data, n * k * 2);
      break;
    case WeightFormat::kMXFP8:
      at.data = launch.bytes(w.data, n * k);
      at.scales = launch.at(w.scales, n * (k / 32));
      break;
    case WeightFormat::kNVFP4:
      at.data = launch.bytes(w.data, n * k / 2);
      at.scales = launch.at(w.scales, n * (k / 16));
      at.outer = launch.at(w.outer, 1);
      break;
    case WeightFormat::kF32:
      break;
  }
  return at;
}

void decode_row(WeightFormat format, const GemmWeight& w, int64_t row, int64_t k, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  if (format == WeightFormat::kBF16) {
    formats::decode_bf16_row(static_cast<const BF16*>(w.data) + row * k, k, out);
  } else if (format == WeightFormat::kMXFP8) {
    formats::decode_mxfp8_row(bytes + row * k, w.scales + row * (k / 32), k, out);
  } else {
    formats::decode_nvfp4_products_row(bytes + row * (k / 2), w.scales + row * (k / 16), k, out);
  }
}

// Rows of A that meet one weight.
struct ForwardRows {
  std::vector<const BF16*> a;
  std::vector<float> outer;    // NVFP4
  std::vector<int64_t> c_row;  // where the result goes
};

using Product = void(const float* const* a, int64_t m, const float* const* b, int64_t n, int64_t k, float* c,
                     int64_t ldc);

void multiply(const GemmForward& g, const ForwardRows& rows, const GemmWeight& w, const MatrixView& c) {
  const auto m = static_cast<int64_t>(rows.a.size());
  const int64_t k = padded_k(g.k);
  std::vector<float> a = emulation::floats(m * k);  // zeros past g.k
  std::vector<const float*> a_rows;
  for (int64_t i = 0; i < m; ++i) {
    emulation::widen_row(rows.a[static_cast<size_t>(i)], g.k, a.data() + i * k);
    a_rows.push_back(a.data() + i * k);
  }
  std::vector<float> panel = emulation::floats(kPanel * k);
  std::vector<const float*> b_rows;
  for (int64_t j = 0; j < kPanel; ++j) b_rows.push_back(panel.data() + j * k);
  std::vector<float> sums = emulation::floats(m * g.n);
  const bool exact = exact_products();
  for (int64_t begin = 0; begin < g.n; begin += kPanel) {
    const int64_t count = std::min(kPanel, g.n - begin);
    for (int64_t j = 0; j < count; ++j) decode_row(g.format, w, begin + j, g.k, panel.data() + j * k);
    const auto product = exact ? static_cast<Product*>(gemm_rows_exact) : static_cast<Product*>(gemm_rows);
    product(a_rows.data(), m, b_rows.data(), count, k, sums.data() + begin, g.n);
  }
  const float inverse = 1.0F / (36.0F * static_cast<float>(g.a_range) * static_cast<float>(g.b_range));
  std::vector<float> row = emulation::floats(g.n);
  for (int64_t i = 0; i < m; ++i) {
    std::copy_n(sums.data() + i * g.n, g.n, row.data());
    if (g.format == WeightFormat::kNVFP4) {
      const float outer = rows.outer[static_cast<size_t>(i)] * *w.outer;
      for (float& x : row) x = (x * inverse) * outer;
    }
    store_result(row, g.c, c, rows.c_row[static_cast<size_t>(i)]);
  }
}

void add_row(const Launch& launch, const GemmForward& g, const BF16* a, int64_t row, int64_t c_row,
             ForwardRows& rows) {
  rows.a.push_back(launch.at(a + row * g.lda, g.k));
  if (g.format == WeightFormat::kNVFP4) rows.outer.push_back(*launch.at(g.a_outer + row, 1));
  rows.c_row.push_back(c_row);
}

// A list that covers each of m rows at most once, in tiles of at most tile_rows.
std::vector<GroupTile> checked(const Launch& launch, const GroupTile* list, int32_t count, int32_t tile_rows,
                               int64_t m) {
  const GroupTile* tiles = launch.at(list, count);
  int64_t next = 0;
  for (int32_t i = 0; i < count; ++i) {
    launch.needs(tiles[i].row_begin >= next && tiles[i].num_rows > 0 && tiles[i].num_rows <= tile_rows &&
                     tiles[i].row_begin + tiles[i].num_rows <= m && tiles[i].expert >= 0,
                 "tiles in ascending order within the rows");
    next = tiles[i].row_begin + tiles[i].num_rows;
  }
  return {tiles, tiles + count};
}

int64_t rows_of(const std::vector<GroupTile>& tiles) {
  int64_t rows = 0;
  for (const GroupTile& tile : tiles) rows += tile.num_rows;
  return rows;
}

// The tiles of a grouped product: wide ones where there are.
std::vector<GroupTile> read_tiles(const Launch& launch, const GemmGroups& groups, int64_t m) {
  const int32_t count = *launch.at(groups.num_tiles, 1);
  launch.needs(count >= 0 && count <= groups.max_tiles, "at most max_tiles tiles");
  std::vector<GroupTile> tiles = checked(launch, groups.tiles, count, groups.tile_rows, m);
  if (groups.tile_rows != 128) return tiles;
  const int32_t wide_count = launch.at(groups.tiles + count, 1)->expert;
  launch.needs(wide_count >= 0 && wide_count <= count, "no more wide tiles than of 128 rows");
  std::vector<GroupTile> wide = checked(launch, groups.tiles + count + 1, wide_count, kWideRows, m);
  launch.needs(rows_of(wide) == rows_of(tiles), "the same rows in wide tiles");
  return wide;
}

// A weight's rows from its fragments.
class RowsOfFragments {
 public:
  RowsOfFragments(const Launch& launch, const GemmForward& g, const GemmWeight& w)
      : codes_(static_cast<size_t>(g.format == WeightFormat::kNVFP4 ? g.n * g.k / 2 : g.n * g.k)),
        scales_(static_cast<size_t>(g.n * g.k / (g.format == WeightFormat::kNVFP4 ? 16 : 32))) {
    launch.needs(takes_fragments(g.format, g.n, g.k), "takes_fragments(format, n, k)");
    launch.aligned(w.fragments, kVectorBytes, "fragments");
    const void* from = launch.bytes(w.fragments, fragments_bytes(g.format, g.n, g.k));
    from_fragments(g.format, g.n, g.k, static_cast<const uint8_t*>(from), codes_.data(), scales_.data());
    if (g.format == WeightFormat::kNVFP4) outer_ = launch.at(w.outer, 1);
  }
  GemmWeight weight() const { return {codes_.data(), scales_.data(), outer_, nullptr}; }

 private:
  std::vector<uint8_t> codes_;
  std::vector<uint8_t> scales_;
  const float* outer_ = nullptr;
};

void grouped_forward(const Launch& launch, const GemmForward& g) {
  const GemmGroups& groups = *g.groups;
  const std::vector<GroupTile> tiles = read_tiles(launch, groups, g.m);
  const MatrixView c = output_view(launch, g.c, g.c.data, g.m, g.n);
  for (size_t i = 0; i < tiles.size();) {
    ForwardRows rows;
    const int32_t expert = tiles[i].expert;
    for (; i < tiles.size() && tiles[i].expert == expert; ++i) {
      const int32_t* gather = groups.gather == nullptr
                                  ? nullptr
                                  : launch.at(groups.gather + tiles[i].row_begin, tiles[i].num_rows);
      for (int32_t r = 0; r < tiles[i].num_rows; ++r) {
        const int32_t row = tiles[i].row_begin + r;
        add_row(launch, g, g.a, gather == nullptr ? row : gather[r], row, rows);
      }
    }
    const GemmWeight& weight = *launch.at(groups.experts + expert, 1);
    if (g.fragments && groups.tile_rows == kFragmentRows) {
      // As the GPU's kernels of few rows: a copy that is not of the arena's bytes would show.
      RowsOfFragments from(launch, g, weight);
      multiply(g, rows, from.weight(), c);
    } else {
      multiply(g, rows, weight_at(launch, g.format, weight, g.n, g.k), c);
    }
  }
}

// ---- backward ---------------------------------------------------------------------------------------------

// c[R,n] = sum over l of a(r,l) b[l,n], a(r,l) = a[r * a_row + l * a_col]; n a multiple of 8.
template <int R>
void strip(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t l, int64_t n, float* c) {
  for (int64_t j = 0; j < n; j += 8) {
    F8 acc[R];
    for (int r = 0; r < R; ++r) acc[r] = f8_zero();
    for (int64_t i = 0; i < l; ++i) {
      const F8 row = load8(b + i * n + j);
      for (int r = 0; r < R; ++r) acc[r] = _mm256_fmadd_ps(f8(a[r * a_row + i * a_col]), row, acc[r]);
    }
    for (int r = 0; r < R; ++r) store8(c + r * n + j, acc[r]);
  }
}

std::vector<float> widen(const Launch& launch, const BF16* x, int64_t ld, const std::vector<int64_t>& rows,
                         int64_t cols) {
  std::vector<float> out = emulation::floats(static_cast<int64_t>(rows.size()) * cols);
  float* to = out.data();
  for (const int64_t row : rows) {
    emulation::widen_row(launch.at(x + row * ld, cols), cols, to);
    to += cols;
  }
  return out;
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> rows;
  for (int64_t i = begin; i < end; ++i) rows.push_back(i);
  return rows;
}

// Row i of x, an element every `stride`, as the exact mode takes it.
struct PaddedRows {
  PaddedRows(const float* x, int64_t rows, int64_t row_stride, int64_t count, int64_t stride)
      : values(emulation::floats(rows * padded_k(count))) {
    for (int64_t r = 0; r < rows; ++r) {
      float* to = values.data() + r * padded_k(count);
      pointers.push_back(to);
      for (int64_t i = 0; i < count; ++i) to[i] = x[r * row_stride + i * stride];
    }
  }
  std::vector<float> values;
  std::vector<const float*> pointers;
};

void exact_strip(const float* a, int64_t a_row, int64_t a_col, const PaddedRows& b, int64_t count, int64_t l,
                 int64_t n, float* c) {
  const PaddedRows rows(a, count, a_row, l, a_col);
  gemm_rows_exact(rows.pointers.data(), count, b.pointers.data(), n, padded_k(l), c, n);
}

// m rows of results, with a's strides, stored at rows c_row...
void products(const std::vector<float>& a, int64_t a_row, int64_t a_col, const std::vector<float>& b,
              int64_t m, int64_t l, int64_t n, const GemmOutput& output, const MatrixView& c, int64_t c_row) {
  constexpr int kRows = 8;
  std::vector<float> block = emulation::floats(kRows * n);
  std::vector<float> row = emulation::floats(n);
  const bool exact = exact_products();
  const PaddedRows b_columns(b.data(), exact ? n : 0, 1, l, n);
  for (int64_t i = 0; i < m; i += kRows) {
    const int64_t count = std::min<int64_t>(kRows, m - i);
    if (exact) {
      exact_strip(a.data() + i * a_row, a_row, a_col, b_columns, count, l, n, block.data());
    } else if (count == kRows) {
      strip<kRows>(a.data() + i * a_row, a_row, a_col, b.data(), l, n, block.data());
    } else {
      for (int64_t r = 0; r < count; ++r) {
        strip<1>(a.data() + (i + r) * a_row, a_row, a_col, b.data(), l, n, block.data() + r * n);
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      std::copy_n(block.data() + r * n, n, row.data());
      store_result(row, output, c, c_row + i + r);
    }
  }
}

// A launch copies the host's description of the groups.
template <class Product>
bool recorded_product(const Product& g, void (*product)(const Product&, StreamHandle), StreamHandle stream) {
  if (!emulation::is_capturing(stream)) return false;
  const GemmGroups groups = g.groups == nullptr ? GemmGroups{} : *g.groups;
  emulation::record_call(stream, [g, groups, product](StreamHandle later) {
    Product again = g;
    if (g.groups != nullptr) again.groups = &groups;
    product(again, later);
  });
  return true;
}

void* batch_output(const GemmOutput& c, int64_t offset) {
  return static_cast<std::byte*>(c.data) + offset * (c.bf16 ? 2 : 4);
}

}  // namespace

void build_group_tiles(const int32_t* offsets, int32_t experts, int32_t tile_rows, GroupTile* tiles,
                       int32_t* num_tiles, StreamHandle stream) {
  if (emulation::recorded(stream, build_group_tiles, offsets, experts, tile_rows, tiles, num_tiles)) return;
  const Launch launch("build_group_tiles", stream);
  const int32_t* begin = launch.at(offsets, experts + 1);
  launch.needs(begin[0] == 0 && std::is_sorted(begin, begin + experts + 1), "ascending offsets from 0");
  std::vector<GroupTile> list;
  for (int32_t e = 0; e < experts; ++e) {
    for (int32_t row = begin[e]; row < begin[e + 1]; row += tile_rows) {
      list.push_back({e, row, std::min(tile_rows, begin[e + 1] - row)});
    }
  }
  const auto count = static_cast<int32_t>(list.size());
  if (tile_rows == 128) {
    list.push_back({});
    for (int32_t e = 0; e < experts; ++e) {
      const int32_t part = wide_rows(begin[e + 1] - begin[e]);
      for (int32_t row = begin[e]; row < begin[e + 1]; row += part) {
        list.push_back({e, row, std::min(part, begin[e + 1] - row)});
      }
    }
    list[static_cast<size_t>(count)].expert = static_cast<int32_t>(list.size()) - count - 1;
  }
  std::copy(list.begin(), list.end(), launch.at(tiles, static_cast<int64_t>(list.size())));
  *launch.at(num_tiles, 1) = count;
}

void to_fragments(WeightFormat format, int64_t n, int64_t k, const GemmWeight* weights, int32_t count,
                  StreamHandle stream) {
  if (emulation::recorded(stream, to_fragments, format, n, k, weights, count)) return;
  const Launch launch("to_fragments", stream);
  launch.needs(takes_fragments(format, n, k), "takes_fragments(format, n, k)");
  const GemmWeight* all = launch.at(weights, count);
  for (int32_t i = 0; i < count; ++i) {
    const bool nvfp4 = format == WeightFormat::kNVFP4;
    launch.aligned(all[i].data, kVectorBytes, "B");
    const void* q = launch.bytes(all[i].data, nvfp4 ? n * k / 2 : n * k);
    const uint8_t* scales = launch.at(all[i].scales, n * k / (nvfp4 ? 16 : 32));
    void* to = launch.bytes(const_cast<void*>(all[i].fragments), fragments_bytes(format, n, k));
    kernels::to_fragments(format, n, k, static_cast<const uint8_t*>(q), scales, static_cast<uint8_t*>(to));
  }
}

void gemm_forward(const GemmForward& g, StreamHandle stream) {
  if (recorded_product(g, gemm_forward, stream)) return;
  const Launch launch("gemm_forward", stream);
  launch.needs(gemm_forward_takes(g), "gemm_forward_takes(g)");
  if (g.m == 0 || g.batch.count == 0) return;
  launch.aligned(g.a, kVectorBytes, "A");
  if (g.groups != nullptr) return grouped_forward(launch, g);
  for (int32_t i = 0; i < g.batch.count; ++i) {
    const BF16* a = g.a + i * g.batch.a;
    launch.aligned(a, kVectorBytes, "A of a batch");
    GemmWeight b = g.b;
    if (g.batch.count > 1) b.data = static_cast<const BF16*>(g.b.data) + i * g.batch.b;
    ForwardRows rows;
    for (int64_t row = 0; row < g.m; ++row) add_row(launch, g, a, row, row, rows);
    multiply(g, rows, weight_at(launch, g.format, b, g.n, g.k),
             output_view(launch, g.c, batch_output(g.c, i * g.batch.c), g.m, g.n));
  }
}

void gemm_forward_together(std::span<const GemmForward> products, StreamHandle stream) {
  require(gemm_forward_takes_together(products), "gemm_forward_takes_together(products)");
  for (const GemmForward& g : products) gemm_forward(g, stream);
}

void gemm_dgrad(const GemmBackward& g, StreamHandle stream) {
  if (recorded_product(g, gemm_dgrad, stream)) return;
  const Launch launch("gemm_dgrad", stream);
  launch.needs(gemm_dgrad_takes(g), "gemm_dgrad_takes(g)");
  if (g.m == 0 || g.batch.count == 0) return;
  launch.aligned(g.a, kVectorBytes, "A");
  if (g.groups == nullptr) {
    for (int32_t i = 0; i < g.batch.count; ++i) {
      const BF16* a = g.a + i * g.batch.a;
      const BF16* b = g.b + i * g.batch.b;
      launch.aligned(a, kVectorBytes, "A of a batch");
      launch.aligned(b, kVectorBytes, "B");
      products(widen(launch, a, g.lda, range(0, g.m), g.l), g.l, 1,
               widen(launch, b, g.ldb, range(0, g.l), g.n), g.m, g.l, g.n, g.c,
               output_view(launch, g.c, batch_output(g.c, i * g.batch.c), g.m, g.n), 0);
    }
    return;
  }
  const MatrixView c = output_view(launch, g.c, g.c.data, g.m, g.n);
  for (const GroupTile& tile : read_tiles(launch, *g.groups, g.m)) {
    const auto* b = static_cast<const BF16*>(launch.at(g.groups->experts + tile.expert, 1)->data);
    launch.aligned(b, kVectorBytes, "B of an expert");
    std::vector<int64_t> rows = range(tile.row_begin, tile.row_begin + tile.num_rows);
    if (g.groups->gather != nullptr) {
      for (int64_t& row : rows) row = *launch.at(g.groups->gather + row, 1);
    }
    products(widen(launch, g.a, g.lda, rows, g.l), g.l, 1, widen(launch, b, g.ldb, range(0, g.l), g.n),
             tile.num_rows, g.l, g.n, g.c, c, tile.row_begin);
  }
}

void gemm_wgrad(const GemmBackward& g, StreamHandle stream) {
  const Launch launch("gemm_wgrad", stream);
  launch.needs(gemm_wgrad_takes(g), "gemm_wgrad_takes(g)");
  const bool grouped = g.offsets != nullptr;
  if (g.m == 0 || (grouped ? g.num_experts : g.batch.count) == 0) return;
  launch.aligned(g.a, kVectorBytes, "A");
  launch.aligned(g.b, kVectorBytes, "B");
  if (!grouped) {
    for (int32_t i = 0; i < g.batch.count; ++i) {
      const std::vector<int64_t> rows = range(0, g.l);
      launch.aligned(g.a + i * g.batch.a, kVectorBytes, "A of a batch");
      launch.aligned(g.b + i * g.batch.b, kVectorBytes, "B of a batch");
      products(widen(launch, g.a + i * g.batch.a, g.lda, rows, g.m), 1, g.m,
               widen(launch, g.b + i * g.batch.b, g.ldb, rows, g.n), g.m, g.l, g.n, g.c,
               output_view(launch, g.c, batch_output(g.c, i * g.batch.c), g.m, g.n), 0);
    }
    return;
  }
  const int32_t* offsets = launch.at(g.offsets, g.num_experts + 1);
  void* const* outputs = launch.at(g.outputs, g.num_experts);
  launch.needs(offsets[0] >= 0 && std::is_sorted(offsets, offsets + g.num_experts + 1), "ascending offsets");
  for (int32_t e = 0; e < g.num_experts; ++e) {
    const std::vector<int64_t> rows = range(offsets[e], offsets[e + 1]);
    std::vector<int64_t> b_rows = rows;
    if (g.b_gather != nullptr) {
      for (int64_t& row : b_rows) row = *launch.at(g.b_gather + row, 1);
    }
    products(widen(launch, g.a, g.lda, rows, g.m), 1, g.m, widen(launch, g.b, g.ldb, b_rows, g.n), g.m,
             static_cast<int64_t>(rows.size()), g.n, g.c, output_view(launch, g.c, outputs[e], g.m, g.n), 0);
  }
}

}  // namespace accord::kernels::cuda
