#include "kernels/gemm/gemm.hpp"

#include <cmath>

#include "random_values.hpp"
#include "support/catch.hpp"

namespace accord::kernels::testing {
namespace {

template <class T>
std::vector<const T*> rows_of(const std::vector<T>& x, int64_t k) {
  std::vector<const T*> rows;
  for (size_t i = 0; i < x.size(); i += static_cast<size_t>(k)) rows.push_back(x.data() + i);
  return rows;
}

// The documented order, spelled out.
float ordered_dot(const float* a, const float* b, int64_t k) {
  float lane[16] = {};
  for (int64_t i = 0; i < k; ++i) lane[i % 16] = std::fma(a[i], b[i], lane[i % 16]);
  float v[8];
  for (int j = 0; j < 8; ++j) v[j] = lane[j] + lane[j + 8];
  float pairs[4];
  for (int j = 0; j < 4; ++j) pairs[j] = v[2 * j] + v[2 * j + 1];
  return (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]);
}

}  // namespace

TEST_CASE("Products have the documented order for every tile shape") {
  for (const int64_t k : {16, 64, 208}) {
    for (int64_t m = 1; m <= 7; ++m) {
      for (int64_t n = 1; n <= 6; ++n) {
        const std::vector<float> a = normal_values(m * k, 1);
        const std::vector<BF16> b16 = rounded(normal_values(n * k, 2));
        const std::vector<float> b = widened(b16);
        std::vector<float> wide(static_cast<size_t>(m * n));
        std::vector<float> direct(wide.size());
        std::vector<float> expected;
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            expected.push_back(ordered_dot(a.data() + i * k, b.data() + j * k, k));
          }
        }
        gemm_rows(rows_of(a, k).data(), m, rows_of(b, k).data(), n, k, wide.data(), n);
        gemm_rows(rows_of(a, k).data(), m, rows_of(b16, k).data(), n, k, direct.data(), n);
        CAPTURE(m, n, k);
        CHECK(same_bits(wide, expected));
        CHECK(same_bits(direct, expected));
      }
    }
  }
}

TEST_CASE("Products are as accurate as sixteen lanes allow") {
  constexpr int64_t kK = 1024;
  const std::vector<float> a = normal_values(9 * kK, 3);
  const std::vector<float> b = normal_values(5 * kK, 4);
  std::vector<float> c(45);
  gemm_rows(rows_of(a, kK).data(), 9, rows_of(b, kK).data(), 5, kK, c.data(), 5);
  for (int64_t i = 0; i < 9; ++i) {
    for (int64_t j = 0; j < 5; ++j) {
      double exact = 0.0;
      double size = 0.0;
      for (int64_t k = 0; k < kK; ++k) {
        const double p = double{a[static_cast<size_t>(i * kK + k)]} * b[static_cast<size_t>(j * kK + k)];
        exact += p;
        size += std::abs(p);
      }
      // 64 additions a lane and 4 of the tree, each off by 2^-24 of a partial sum.
      CHECK(std::abs(c[static_cast<size_t>(i * 5 + j)] - exact) < 68.0 * 0x1p-24 * size);
    }
  }
}

}  // namespace accord::kernels::testing
