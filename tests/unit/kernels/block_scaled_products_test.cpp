// What is asked of cuBLASLt (kernels/block_scaled), by way of one that checks and records it.
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/block_scaled/outer_scale.hpp"
#include "kernels/block_scaled/products.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/formats/swizzle.hpp"
#include "random_values.hpp"
#include "support/catch.hpp"
#include "support/fake_cublaslt.hpp"

using namespace accord;
using namespace accord::kernels::block_scaled;
using accord::testing::lt_record;

namespace {

template <class T>
T must(StatusOr<T> value) {
  if (!value.ok()) INFO(std::string(message_of(value.status())));
  REQUIRE(value.ok());
  return std::move(value).value();
}

std::string text_of(const Status& status) { return std::string(message_of(status)); }

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

struct Aligned {
  explicit Aligned(size_t bytes) : storage(bytes + 16) {}
  uint8_t* data() {
    const auto at = reinterpret_cast<uintptr_t>(storage.data());
    return storage.data() + (16 - at % 16) % 16;
  }
  std::vector<uint8_t> storage;
};

// One operand [rows, k] as cuBLASLt gets it, `room` rows of codes, and its decoded values.
struct Operand {
  Operand(const ProductShape& shape, int64_t rows, int64_t room, uint32_t seed, formats::Nvfp4Scope scope)
      : codes(static_cast<size_t>(room * row_bytes(shape))),
        tiles(static_cast<size_t>(tile_bytes(shape, room))),
        outer(static_cast<size_t>(rows)),
        values(static_cast<size_t>(rows * shape.k)) {
    std::vector<float> x = kernels::testing::normal_values(rows * shape.k, seed);
    const int64_t inner = scales_per_row(shape);
    std::vector<uint8_t> scales(static_cast<size_t>(rows * inner));
    const MatrixView view{x.data(), Dtype::kF32, rows, shape.k, shape.k};
    if (shape.format == WeightFormat::kMXFP8) {
      formats::quantize_mxfp8_rows(view, codes.data(), scales.data(), formats::Element::kE4M3, nullptr);
    } else {
      formats::Nvfp4Options options;
      options.scope = scope;
      formats::quantize_nvfp4(view, options, {codes.data(), scales.data(), outer.data()});
    }
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* row = codes.data() + r * row_bytes(shape);
      float* out = values.data() + r * shape.k;
      if (shape.format == WeightFormat::kMXFP8) {
        formats::decode_mxfp8_row(row, scales.data() + r * inner, shape.k, out);
      } else {
        formats::decode_nvfp4_products_row(row, scales.data() + r * inner, shape.k, out);
      }
    }
    formats::swizzle_scales(scales.data(), rows, inner, tiles.data());
  }
  Aligned codes, tiles;
  std::vector<float> outer, values;
};

}  // namespace

TEST_CASE("block-scaled: which products there are") {
  const auto mxfp8 = WeightFormat::kMXFP8;
  const auto nvfp4 = WeightFormat::kNVFP4;
  for (const auto format : {mxfp8, nvfp4}) {
    CHECK(takes({format, 16, 32}));
    CHECK(takes({format, 4096, 576}));
    CHECK(!takes({format, 24, 64}));
    CHECK(!takes({format, 64, 48}));  // NVFP4 blocks, but rows of 24 bytes
    CHECK(!takes({format, 0, 32}));
  }
  CHECK(!takes({WeightFormat::kBF16, 64, 64}));
  CHECK(row_bytes({mxfp8, 64, 96}) == 96);
  CHECK(row_bytes({nvfp4, 64, 96}) == 48);
  CHECK(scales_per_row({mxfp8, 64, 96}) == 3);
  CHECK(scales_per_row({nvfp4, 64, 96}) == 6);
  CHECK(tile_bytes({mxfp8, 64, 96}, 129) == 2 * 512);
  CHECK(tile_bytes({nvfp4, 64, 96}, 128) == 2 * 512);
  CHECK(padded_rows(1) == 128);
  CHECK(padded_rows(128) == 128);
  CHECK(products_inverse(448, 448) == 1.0F / (36.0F * 448.0F * 448.0F));
}

TEST_CASE("block-scaled: rows are cut into calls of whole tiles") {
  for (const auto format : {WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
    for (const bool direct : {true, false}) {
      for (const int64_t n : {16, 4096, 151936}) {
        for (const int64_t m : {1, 127, 128, 129, 300, 5000}) {
          CAPTURE(static_cast<int>(format), direct, n, m);
          const ProductShape shape{format, n, 64};
          int64_t next = 0;
          for (const RowCall& call : row_calls(shape, m, direct)) {
            CHECK(call.first == next);
            CHECK(call.first % kRowMultiple == 0);
            CHECK(call.rows == padded_rows(call.kept));
            next += call.kept;
            const int64_t bytes = call.rows * n * (format == WeightFormat::kNVFP4 ? 4 : 2);
            if (call.staged) {
              CHECK(bytes <= staging_bytes(shape, m));
            } else {
              CHECK((format == WeightFormat::kMXFP8 && direct && call.kept == call.rows));
            }
          }
          CHECK(next == m);
        }
      }
    }
  }
  // The staged results of many rows stay small.
  CHECK(staging_bytes({WeightFormat::kNVFP4, 4096, 64}, 1 << 20) == kSumsBytes);
}

TEST_CASE("block-scaled: a product is described as row-major matrices are seen by columns") {
  accord::testing::set_faults({});
  {
    const auto products = must(BlockScaledProducts::create(accord::testing::fake_cublaslt()));
    for (const auto format : {WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
      const bool mxfp8 = format == WeightFormat::kMXFP8;
      const ProductShape shape{format, 48, 160};
      REQUIRE(products->pin(shape).ok());
      Operand w(shape, shape.n, shape.n, 1, formats::Nvfp4Scope::kTensor);
      Operand x(shape, 5, kRowMultiple, 2, formats::Nvfp4Scope::kToken);
      Aligned d(static_cast<size_t>(kRowMultiple * shape.n * 4));
      Aligned workspace(kWorkspaceBytes);
      const float alpha = mxfp8 ? 1.0F : products_inverse(448, 448);
      const float beta = 0.0F;
      REQUIRE(products
                  ->multiply(shape, kRowMultiple,
                             {w.codes.data(), w.tiles.data(), x.codes.data(), x.tiles.data(), d.data(),
                              &alpha, &beta, workspace.data()},
                             nullptr)
                  .ok());
      const auto& call = lt_record().calls.back();
      CHECK(call.rows == kRowMultiple);
      CHECK(call.n == shape.n);
      CHECK(call.k == shape.k);
      CHECK(call.operand_type == (mxfp8 ? kLtTypeE4M3 : kLtTypeE2M1));
      CHECK(call.result_type == (mxfp8 ? kLtTypeBF16 : kLtTypeF32));
      CHECK(call.scale_mode == (mxfp8 ? kLtScaleVec32UE8M0 : kLtScaleVec16UE4M3));
      // The values, in double; the outer scales onto them in the contract's order.
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < shape.n; ++j) {
          double sum = 0.0;
          double size = 0.0;
          float in_order = 0.0F;
          for (int64_t l = 0; l < shape.k; ++l) {
            const float left = x.values[static_cast<size_t>(i * shape.k + l)];
            const float right = w.values[static_cast<size_t>(j * shape.k + l)];
            in_order += left * right;
            sum += static_cast<double>(left) * right;
            size += std::fabs(static_cast<double>(left) * right);
          }
          const int64_t at = i * shape.n + j;
          if (mxfp8) {
            BF16 got;
            std::memcpy(&got, d.data() + at * 2, 2);
            CHECK(std::fabs(to_float(got) - sum) <= size * 0x1p-8);
            CHECK(got.bits == to_bf16(in_order).bits);
            continue;
          }
          float got = 0.0F;
          std::memcpy(&got, d.data() + at * 4, 4);
          const float a = x.outer[static_cast<size_t>(i)];
          const float b = w.outer[0];
          CHECK(std::fabs(got / alpha - sum) <= size * 0x1p-16);
          const float contract = (in_order * (1.0F / (36.0F * 448.0F * 448.0F))) * (a * b);
          CHECK(apply_outer_scales(got, a, b) == contract);
        }
      }
    }
  }
  CHECK(lt_record().live == 0);  // descriptors of every kind
}

TEST_CASE("block-scaled: one algorithm for every number of rows") {
  accord::testing::set_faults({});
  const auto products = must(BlockScaledProducts::create(accord::testing::fake_cublaslt()));
  const ProductShape shape{WeightFormat::kMXFP8, 32, 64};
  REQUIRE(products->pin(shape).ok());
  REQUIRE(products->pin(shape).ok());
  CHECK(products->is_pinned(shape));
  CHECK(!products->is_pinned({WeightFormat::kNVFP4, 32, 64}));
  constexpr int64_t kRows = 3 * kRowMultiple;
  Operand w(shape, shape.n, shape.n, 3, formats::Nvfp4Scope::kTensor);
  Operand x(shape, kRows, kRows, 4, formats::Nvfp4Scope::kToken);
  Aligned whole(static_cast<size_t>(kRows * shape.n * 2));
  Aligned part(static_cast<size_t>(kRows * shape.n * 2));
  Aligned workspace(kWorkspaceBytes);
  const float one = 1.0F;
  const float zero = 0.0F;
  ProductOperands p{w.codes.data(), w.tiles.data(), x.codes.data(), x.tiles.data(),
                    whole.data(),   &one,           &zero,          workspace.data()};
  REQUIRE(products->multiply(shape, kRows, p, nullptr).ok());
  // The same rows in two calls.
  p.d = part.data();
  REQUIRE(products->multiply(shape, kRowMultiple, p, nullptr).ok());
  p.x += kRowMultiple * row_bytes(shape);
  p.x_tiles += tile_bytes(shape, kRowMultiple);
  p.d = part.data() + kRowMultiple * shape.n * 2;
  REQUIRE(products->multiply(shape, 2 * kRowMultiple, p, nullptr).ok());
  CHECK(std::memcmp(whole.data(), part.data(), static_cast<size_t>(kRows * shape.n * 2)) == 0);
  CHECK(lt_record().heuristics == 1);
  for (const auto& call : lt_record().calls) CHECK(call.algorithm == lt_record().calls[0].algorithm);
  CHECK(!products->multiply(shape, 100, p, nullptr).ok());
  CHECK(!products->multiply({WeightFormat::kNVFP4, 32, 64}, 128, p, nullptr).ok());
}

TEST_CASE("block-scaled: algorithms that split a sum are passed over") {
  const ProductShape shape{WeightFormat::kNVFP4, 32, 64};
  accord::testing::set_faults({});
  auto products = must(BlockScaledProducts::create(accord::testing::fake_cublaslt()));
  REQUIRE(products->pin(shape).ok());
  CHECK(products->algorithms().at(0).find("nvfp4 32x64: 2 tile 0") == 0);  // the first one splits K

  accord::testing::set_faults({.only_split = true});
  products = must(BlockScaledProducts::create(accord::testing::fake_cublaslt()));
  std::string text = text_of(products->pin(shape));
  CHECK(has(text, "nvfp4 32x64"));
  CHECK(has(text, "in one sequence"));
  CHECK(has(text, "ACCORD_CUBLASLT=off"));

  accord::testing::set_faults({.few_rows_only = true});
  products = must(BlockScaledProducts::create(accord::testing::fake_cublaslt()));
  CHECK(has(text_of(products->pin(shape)), "any number of rows"));

  accord::testing::set_faults({.not_supported = true});
  products = must(BlockScaledProducts::create(accord::testing::fake_cublaslt()));
  text = text_of(products->pin(shape));
  CHECK(has(text, "cublasLtMatmulAlgoGetHeuristic of cuBLASLt 13.1.0"));
  CHECK(has(text, "not supported (15) for the product of nvfp4 32x64"));

  accord::testing::set_faults({.create_fails = true});
  text = text_of(BlockScaledProducts::create(accord::testing::fake_cublaslt()).status());
  CHECK(has(text, "cublasLtCreate of cuBLASLt 13.1.0"));
  accord::testing::set_faults({});
}

TEST_CASE("block-scaled: the arithmetic names version and algorithms") {
  const ProductShape small{WeightFormat::kNVFP4, 32, 64};
  const ProductShape large{WeightFormat::kMXFP8, 64, 64};
  const auto arithmetic = [&](const std::vector<ProductShape>& shapes, int first, size_t version) {
    accord::testing::set_faults({.first_algorithm = first});
    LtApi api = accord::testing::fake_cublaslt();
    api.version = version;
    const auto products = must(BlockScaledProducts::create(api));
    for (const ProductShape& shape : shapes) REQUIRE(products->pin(shape).ok());
    return products->arithmetic();
  };
  const std::string reference = arithmetic({small, large}, 1, 130100);
  CHECK(reference.find("cuBLASLt 130100 ") == 0);
  CHECK(arithmetic({large, small}, 1, 130100) == reference);
  CHECK(arithmetic({small, large}, 7, 130100) != reference);
  CHECK(arithmetic({small, large}, 1, 130200) != reference);
  CHECK(arithmetic({small}, 1, 130100) != reference);
  accord::testing::set_faults({});
}
