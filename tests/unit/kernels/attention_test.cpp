#include "kernels/attention/attention.hpp"

#include <cmath>
#include <limits>
#include <numeric>

#include "base/philox.hpp"
#include "random_values.hpp"
#include "support/catch.hpp"

namespace accord::kernels::testing {
namespace {

struct Case {
  int64_t heads, kv_heads, head_dim;
  int32_t length;
};

// One sequence of `length` positions on shuffled pages, every position a query; softmax in double.
template <class T>
void check_against_double(const Case& c, double tolerance) {
  const int64_t width = c.kv_heads * c.head_dim;
  const int64_t pages = (c.length + kPageSize - 1) / kPageSize;
  const int64_t rows = pages * kPageSize;
  std::vector<int32_t> page_rows(static_cast<size_t>(pages));
  std::iota(page_rows.begin(), page_rows.end(), 0);
  PhiloxStream random(3, 3);
  for (size_t i = page_rows.size() - 1; i > 0; --i)
    std::swap(page_rows[i], page_rows[random.next_below(i + 1)]);
  for (int32_t& p : page_rows) p *= kPageSize;
  const auto cast = [](std::vector<float> x) {
    std::vector<T> out;
    for (const float v : x) out.push_back(from_float<T>(v));
    return out;
  };
  std::vector<T> k = cast(normal_values(rows * width, 1));
  std::vector<T> v = cast(normal_values(rows * width, 2));
  std::vector<T> q = cast(normal_values(c.length * c.heads * c.head_dim, 3, 1.5));
  std::vector<T> out(q.size());
  std::vector<float> lse(static_cast<size_t>(c.length * c.heads));
  const KvLayer kv{matrix_view(k.data(), rows, width), matrix_view(v.data(), rows, width)};
  const Segment segment{0, c.length, 0, page_rows.data()};
  Workspace scratch;
  for (int64_t h = 0; h < c.kv_heads; ++h) {
    attention(matrix_view(q.data(), c.length, c.heads * c.head_dim), kv, segment, 0, c.length, h,
              {c.heads, c.kv_heads, c.head_dim}, matrix_view(out.data(), c.length, c.heads * c.head_dim),
              lse.data(), scratch);
  }
  double worst = 0.0;
  double worst_lse = 0.0;
  const int64_t group = c.heads / c.kv_heads;
  for (int32_t p = 0; p < c.length; p += 1 + p / 50) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const auto cache = [&](const std::vector<T>& x, int32_t j, int64_t i) {
        const int64_t row = page_rows[static_cast<size_t>(j / kPageSize)] + j % kPageSize;
        return double{to_float(x[static_cast<size_t>(row * width + h / group * c.head_dim + i)])};
      };
      const size_t at = static_cast<size_t>((p * c.heads + h) * c.head_dim);
      std::vector<double> scores;
      double max = -1e300;
      for (int32_t j = 0; j <= p; ++j) {
        double s = 0.0;
        for (int64_t i = 0; i < c.head_dim; ++i)
          s += double{to_float(q[at + static_cast<size_t>(i)])} * cache(k, j, i);
        scores.push_back(s / std::sqrt(double(c.head_dim)));
        max = std::max(max, scores.back());
      }
      double sum = 0.0;
      std::vector<double> expected(static_cast<size_t>(c.head_dim));
      for (int32_t j = 0; j <= p; ++j) {
        const double w = std::exp(scores[static_cast<size_t>(j)] - max);
        sum += w;
        for (int64_t i = 0; i < c.head_dim; ++i) expected[static_cast<size_t>(i)] += w * cache(v, j, i);
      }
      for (int64_t i = 0; i < c.head_dim; ++i) {
        const double diff =
            std::abs(to_float(out[at + static_cast<size_t>(i)]) - expected[static_cast<size_t>(i)] / sum);
        worst = std::max(worst, std::isnan(diff) ? 1e9 : diff);
      }
      worst_lse =
          std::max(worst_lse, std::abs(lse[static_cast<size_t>(p * c.heads + h)] - (max + std::log(sum))));
    }
  }
  CAPTURE(c.heads, c.kv_heads, c.head_dim, c.length, worst, worst_lse);
  CHECK(worst < tolerance);
  CHECK(worst_lse < 1e-5);
}

}  // namespace

TEST_CASE("Attention agrees with double precision") {
  for (const Case& c : {Case{4, 2, 32, 90}, Case{3, 1, 24, 70}, Case{2, 2, 128, 40}, Case{8, 1, 8, 130},
                        Case{64, 1, 16, 66}, Case{2, 1, 64, 1100}}) {
    check_against_double<float>(c, 3e-6);
    check_against_double<BF16>(c, 0.01);  // half an ulp of a bf16 output below 4
  }
}

TEST_CASE("Attention with one key returns its value") {
  std::vector<BF16> k = rounded(normal_values(16 * 16, 1));
  std::vector<BF16> v = rounded(normal_values(16 * 16, 2));
  std::vector<BF16> q = rounded(normal_values(16, 3));
  std::vector<BF16> out(16);
  float lse = 0.0F;
  const int32_t page = 0;
  Workspace scratch;
  attention(matrix_view(q.data(), 1, 16), {matrix_view(k.data(), 16, 16), matrix_view(v.data(), 16, 16)},
            {0, 1, 0, &page}, 0, 1, 0, {1, 1, 16}, matrix_view(out.data(), 1, 16), &lse, scratch);
  for (size_t i = 0; i < 16; ++i) CHECK(out[i].bits == v[i].bits);
}

TEST_CASE("Attention never touches later keys") {
  constexpr int32_t kLength = 80;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> k = normal_values(kLength * 16, 1);
  std::vector<float> v = normal_values(kLength * 16, 2);
  std::vector<float> q = normal_values(kLength * 32, 3);
  std::vector<int32_t> pages;
  for (int32_t p = 0; p < kLength; p += kPageSize) pages.push_back(p);
  const auto run = [&] {
    std::vector<float> out(q.size());
    std::vector<float> lse(2 * kLength);
    Workspace scratch;
    attention(matrix_view(q.data(), kLength, 32),
              {matrix_view(k.data(), kLength, 16), matrix_view(v.data(), kLength, 16)},
              {0, kLength, 0, pages.data()}, 0, kLength, 0, {2, 1, 16}, matrix_view(out.data(), kLength, 32),
              lse.data(), scratch);
    return out;
  };
  const std::vector<float> clean = run();
  constexpr int64_t kPoisoned = 70;
  k[kPoisoned * 16] = nan;
  v[kPoisoned * 16 + 1] = nan;
  const std::vector<float> poisoned = run();
  CHECK(same_bits({clean.begin(), clean.begin() + kPoisoned * 32},
                  {poisoned.begin(), poisoned.begin() + kPoisoned * 32}));
  for (size_t i = kPoisoned * 32; i < poisoned.size(); ++i) REQUIRE(std::isnan(poisoned[i]));
}

}  // namespace accord::kernels::testing
