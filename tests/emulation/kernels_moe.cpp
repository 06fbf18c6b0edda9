// Routing, expert order and combination over the CPU's (router_cuda.hpp, moe_cuda.hpp).
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/moe/moe.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "kernels/router/router.hpp"
#include "kernels/router/router_cuda.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/rows.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::Launch;

constexpr int64_t kMaxGroups = 32;
constexpr int64_t kFewIds = 8192;  // moe_cuda.cu: a sort of so many needs no scratch
constexpr int64_t kChunk = 1024;

}  // namespace

void route(const RouterRule& rule, const float* logits, int64_t tokens, const float* bias, bool replayed,
           float* scores, int32_t* ids, float* weights, StreamHandle stream) {
  if (emulation::recorded(stream, route, rule, logits, tokens, bias, replayed, scores, ids, weights)) return;
  const Launch launch("route", stream);
  launch.needs(rule.experts <= kMaxRouterExperts && rule.groups <= kMaxGroups && rule.k <= rule.experts,
               "at most 1024 experts in 32 groups, k of them");
  if (tokens == 0) return;
  const float* in = launch.at(logits, tokens * rule.experts);
  const float* bias_in = launch.maybe(bias, rule.experts);
  float* scores_out = launch.maybe(scores, tokens * rule.experts);
  int32_t* chosen = launch.at(ids, tokens * rule.k);
  float* weights_out = launch.at(weights, tokens * rule.k);
  std::vector<float> row = emulation::floats(rule.experts);
  std::vector<float> scratch = emulation::floats(rule.experts + rule.groups);
  for (int64_t t = 0; t < tokens; ++t) {
    int32_t* row_ids = chosen + t * rule.k;
    router_scores(rule, in + t * rule.experts, row.data());
    if (replayed) {
      launch.needs(
          std::all_of(row_ids, row_ids + rule.k, [&](int32_t id) { return id >= 0 && id < rule.experts; }),
          "replayed ids of experts that exist");
    } else {
      router_choose(rule, row.data(), bias_in, row_ids, scratch.data());
    }
    router_weights(rule, row.data(), row_ids, weights_out + t * rule.k);
    if (scores_out != nullptr) std::copy(row.begin(), row.end(), scores_out + t * rule.experts);
  }
}

int64_t sort_scratch(int64_t num_ids, int64_t experts) {
  return num_ids <= kFewIds ? 0 : (num_ids + kChunk - 1) / kChunk * experts;
}

void sort_by_expert(const int32_t* ids, int64_t num_ids, int64_t experts, int64_t k, ExpertOrder order,
                    int32_t* scratch, StreamHandle stream) {
  if (emulation::recorded(stream, sort_by_expert, ids, num_ids, experts, k, order, scratch)) return;
  const Launch launch("sort_by_expert", stream);
  launch.needs(num_ids % k == 0 && experts <= kMaxRouterExperts, "whole tokens, and at most 1024 experts");
  const int32_t* in = launch.at(ids, num_ids);
  launch.needs(std::all_of(in, in + num_ids, [&](int32_t id) { return id >= 0 && id < experts; }),
               "ids of experts that exist");
  launch.scratch(scratch, sort_scratch(num_ids, experts));
  kernels::sort_by_expert(
      {in, static_cast<size_t>(num_ids)}, experts, k,
      {launch.at(order.expert_offsets, experts + 1), launch.at(order.sorted_tokens, num_ids),
       launch.at(order.sorted_slots, num_ids), launch.at(order.slot_rows, num_ids)});
}

void gather_rows(MatrixView x, const int32_t* sorted_tokens, MatrixView y, StreamHandle stream) {
  if (emulation::recorded(stream, gather_rows, x, sorted_tokens, y)) return;
  const Launch launch("gather_rows", stream);
  launch.needs(x.dtype == y.dtype && x.cols == y.cols, "x and y of one width and dtype");
  if (y.rows == 0 || y.cols == 0) return;
  const MatrixView from = launch.at(x);
  const MatrixView to = launch.at(y);
  const int32_t* rows = launch.at(sorted_tokens, y.rows);
  const int64_t element = size_of(x.dtype);
  for (int64_t r = 0; r < y.rows; ++r) {
    launch.needs(rows[r] >= 0 && rows[r] < x.rows, "rows of x");
    std::memcpy(static_cast<std::byte*>(to.data) + r * to.stride * element,
                static_cast<const std::byte*>(from.data) + rows[r] * from.stride * element,
                static_cast<size_t>(x.cols * element));
  }
}

void combine_experts(MatrixView x, MatrixView down, const float* weights, const int32_t* slot_rows, int64_t k,
                     MatrixView y, StreamHandle stream) {
  if (emulation::recorded(stream, combine_experts, x, down, weights, slot_rows, k, y)) return;
  const Launch launch("combine_experts", stream);
  launch.needs(x.dtype == down.dtype && x.dtype == y.dtype && x.cols == down.cols && x.cols == y.cols,
               "x, down and y of one width and dtype");
  if (x.rows == 0 || x.cols == 0) return;
  const int32_t* rows = launch.at(slot_rows, x.rows * k);
  launch.needs(std::all_of(rows, rows + x.rows * k, [&](int32_t row) { return row >= 0 && row < down.rows; }),
               "rows of down");
  kernels::combine_experts(launch.at(x), launch.at(down), launch.at(weights, x.rows * k), rows, k, 0, x.rows,
                           launch.at(y, x.rows));
}

}  // namespace accord::kernels::cuda
