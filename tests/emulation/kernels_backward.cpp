// Backward row ops over the CPU's: rmsnorm, swiglu, embedding, moe, router, logprob.
#include <algorithm>
#include <vector>

#include "kernels/embedding/embedding_backward_cuda.hpp"
#include "kernels/logprob/logprob_backward.hpp"
#include "kernels/logprob/logprob_backward_cuda.hpp"
#include "kernels/moe/moe_backward.hpp"
#include "kernels/moe/moe_backward_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_backward.hpp"
#include "kernels/rmsnorm/rmsnorm_backward_cuda.hpp"
#include "kernels/router/router_cuda.hpp"
#include "kernels/swiglu/swiglu_backward.hpp"
#include "kernels/swiglu/swiglu_backward_cuda.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/rows.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::floats;
using emulation::Launch;

constexpr int64_t kRowBlock = 64;  // rows of a partial weight gradient

void check_indices(const Launch& launch, const int32_t* x, int64_t count, int64_t bound, const char* rule) {
  launch.needs(std::all_of(x, x + count, [&](int32_t i) { return i >= 0 && i < bound; }), rule);
}

}  // namespace

int64_t rmsnorm_backward_scratch(int64_t rows, int64_t width) {
  return (rows + kRowBlock - 1) / kRowBlock * width;
}

void rmsnorm_backward(MatrixView x, const float* inv_rms, const BF16* weight, const float* dy, MatrixView dx,
                      bool accumulate, float* dweight, float* scratch, StreamHandle stream) {
  const Launch launch("rmsnorm_backward", stream);
  launch.needs(x.dtype == Dtype::kBF16 && dx.cols == x.cols && dx.rows >= x.rows,
               "bf16 x, and dx of its shape");
  launch.needs(dx.dtype == Dtype::kF32 || (dx.dtype == Dtype::kBF16 && !accumulate),
               "dx of fp32, or of bf16 and not accumulated");
  if (x.rows == 0 || x.cols == 0) return;
  launch.scratch(scratch, rmsnorm_backward_scratch(x.rows, x.cols));
  const MatrixView out = launch.at(dx, x.rows);
  std::vector<float> result = floats(x.rows * x.cols);
  if (accumulate) {
    for (int64_t r = 0; r < x.rows; ++r) std::copy_n(out.row<float>(r), x.cols, result.data() + r * x.cols);
  }
  std::vector<float> sums = floats(x.cols);
  kernels::rmsnorm_backward(launch.at(x), launch.at(inv_rms, x.rows), launch.at(weight, x.cols),
                            launch.at(dy, x.rows * x.cols), result.data(), accumulate, sums.data());
  float* total = launch.at(dweight, x.cols);
  for (int64_t h = 0; h < x.cols; ++h) total[h] += sums[static_cast<size_t>(h)];
  MatrixView rows = out;
  rows.rows = x.rows;
  emulation::store_rows(result.data(), rows);
}

void swiglu_backward(MatrixView gate, MatrixView up, const float* dact, BF16* dgate, BF16* dup,
                     StreamHandle stream) {
  const Launch launch("swiglu_backward", stream);
  launch.needs(
      gate.dtype == Dtype::kBF16 && up.dtype == Dtype::kBF16 && gate.cols == up.cols && gate.rows == up.rows,
      "bf16 gate and up of one shape");
  const int64_t count = gate.rows * gate.cols;
  if (count == 0) return;
  std::vector<float> gate_result = floats(count);
  std::vector<float> up_result = floats(count);
  kernels::swiglu_backward(launch.at(gate), launch.at(up), launch.at(dact, count), gate_result.data(),
                           up_result.data());
  emulation::store_row(gate_result.data(), count, launch.at(dgate, count));
  emulation::store_row(up_result.data(), count, launch.at(dup, count));
}

void embedding_backward(const TokenRows& batch, const float* dx, int64_t hidden, float* dtable,
                        StreamHandle stream) {
  const Launch launch("embedding_backward", stream);
  if (batch.count == 0 || hidden == 0) return;
  const int32_t* tokens = launch.at(batch.tokens, batch.count);
  const int32_t* offsets = launch.at(batch.offsets, batch.count + 1);
  launch.needs(offsets[0] == 0 && std::is_sorted(offsets, offsets + batch.count + 1),
               "ascending offsets from 0");
  const int64_t total = offsets[batch.count];
  const int32_t* rows = launch.at(batch.rows, total);
  const float* from = launch.at(dx, total * hidden);
  check_indices(launch, rows, total, total, "rows of dx");
  std::vector<int32_t> sorted(tokens, tokens + batch.count);
  std::sort(sorted.begin(), sorted.end());
  launch.needs(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() && sorted.front() >= 0,
               "different tokens from 0 on");
  for (int32_t i = 0; i < batch.count; ++i) {
    launch.needs(std::is_sorted(rows + offsets[i], rows + offsets[i + 1]), "ascending rows of each token");
    float* to = launch.at(dtable + tokens[i] * hidden, hidden);
    for (int32_t r = offsets[i]; r < offsets[i + 1]; ++r) {
      const float* row = from + rows[r] * hidden;
      for (int64_t h = 0; h < hidden; ++h) to[h] += row[h];
    }
  }
}

void moe_combine_backward(const float* dy, int64_t hidden, MatrixView down, const int32_t* tokens,
                          const int32_t* slots, const float* weights, int64_t num_slots, BF16* ddown,
                          float* dweights, StreamHandle stream) {
  const Launch launch("moe_combine_backward", stream);
  launch.needs(
      down.dtype == Dtype::kBF16 && down.cols == hidden && num_slots > 0 && down.rows % num_slots == 0,
      "bf16 down of hidden columns, and whole tokens");
  if (down.rows == 0) return;
  const int32_t* token = launch.at(tokens, down.rows);
  const int32_t* slot = launch.at(slots, down.rows);
  check_indices(launch, token, down.rows, down.rows / num_slots, "tokens of the batch");
  check_indices(launch, slot, down.rows, num_slots, "slots of a token");
  std::vector<float> result = floats(down.rows * hidden);
  kernels::moe_combine_backward(launch.at(dy, down.rows / num_slots * hidden), hidden, launch.at(down), token,
                                slot, launch.at(weights, down.rows), num_slots, 0, down.rows, result.data(),
                                launch.at(dweights, down.rows));
  emulation::store_row(result.data(), down.rows * hidden, launch.at(ddown, down.rows * hidden));
}

void moe_dispatch_backward(const float* dx_rows, int64_t hidden, const int32_t* slot_rows, int64_t num_slots,
                           int64_t tokens, float* dx, StreamHandle stream) {
  const Launch launch("moe_dispatch_backward", stream);
  if (tokens == 0) return;
  const int64_t rows = tokens * num_slots;
  const int32_t* row = launch.at(slot_rows, rows);
  check_indices(launch, row, rows, rows, "sorted rows");
  kernels::moe_dispatch_backward(launch.at(dx_rows, rows * hidden), hidden, row, num_slots, 0, tokens,
                                 launch.at(dx, tokens * hidden));
}

void router_backward(const RouterRule& rule, const float* scores, const int32_t* ids, const float* dweights,
                     int64_t tokens, BF16* dlogits, StreamHandle stream) {
  const Launch launch("router_backward", stream);
  launch.needs(rule.experts <= kMaxRouterExperts && rule.k <= rule.experts,
               "at most 1024 experts, k of them");
  if (tokens == 0) return;
  const int32_t* chosen = launch.at(ids, tokens * rule.k);
  check_indices(launch, chosen, tokens * rule.k, rule.experts, "ids of experts that exist");
  std::vector<float> result = floats(tokens * rule.experts);
  kernels::router_backward(rule, launch.at(scores, tokens * rule.experts), chosen,
                           launch.at(dweights, tokens * rule.k), 0, tokens, result.data());
  emulation::store_row(result.data(), tokens * rule.experts, launch.at(dlogits, tokens * rule.experts));
}

void logprob_backward(MatrixView logits, const float* temperatures, const int32_t* tokens,
                      const float* entropies, const float* dlogprobs, const float* dentropies, BF16* dlogits,
                      StreamHandle stream) {
  const Launch launch("logprob_backward", stream);
  launch.needs(logits.dtype == Dtype::kF32, "fp32 logits");
  if (logits.rows == 0 || logits.cols == 0) return;
  const MatrixView in = launch.at(logits);
  const int64_t rows = in.rows;
  const float* temperature = launch.at(temperatures, rows);
  const int32_t* token = launch.at(tokens, rows);
  const float* entropy = launch.at(entropies, rows);
  const float* dlogprob = launch.at(dlogprobs, rows);
  const float* dentropy = launch.at(dentropies, rows);
  BF16* out = launch.at(dlogits, rows * in.cols);
  check_indices(launch, token, rows, in.cols, "tokens of the vocabulary");
  std::vector<float> row = floats(in.cols);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(in.row<float>(r), in.cols, row.data());
    const SoftmaxStats stats = softmax_stats(row.data(), in.cols, temperature[r]);
    kernels::logprob_backward(row.data(), in.cols, temperature[r], stats, token[r], entropy[r], dlogprob[r],
                              dentropy[r]);
    emulation::store_row(row.data(), in.cols, out + r * in.cols);
  }
}

}  // namespace accord::kernels::cuda
