// The mixture of experts of a layer's backward.
#include <algorithm>

#include "kernels/linear/linear_backward.hpp"
#include "kernels/math/convert.hpp"
#include "kernels/moe/moe_backward.hpp"
#include "kernels/swiglu/swiglu_backward.hpp"
#include "trainer/layer_backward.hpp"

namespace accord::trainer {

namespace {

MatrixView taped(const Buffer& buffer, Dtype dtype, int64_t rows, int64_t cols) {
  return {buffer.data(), dtype, rows, cols, cols};
}

}  // namespace

Status LayerBackward::experts(const LayerParams& params, const model::LayerWeights& weights,
                              const model::LayerTape& tape, int64_t rows, const float* dx_TH,
                              model::ExpertExchange* exchange) {
  const int64_t hidden = w_.config.hidden_size;
  const int64_t num_experts = w_.config.num_experts;
  const int64_t slots = w_.config.num_experts_per_token;
  const int64_t expert_rows = rows * slots;
  const int32_t* tokens = tape.sorted_tokens.data();

  // Combine, and the experts' common input in sorted order where they are here.
  float* ddown = scratch(ddown_, expert_rows * hidden);
  float* dweights = scratch(dweights_, expert_rows);
  const float* norm = w_.operand(taped(tape.norm2, w_.compute_dtype, rows, hidden), norm_);
  float* expert_in = exchange == nullptr ? scratch(expert_in_, expert_rows * hidden) : nullptr;
  const MatrixView down = taped(tape.down, w_.compute_dtype, expert_rows, hidden);
  rows_of_slots_.resize(static_cast<size_t>(expert_rows));
  w_.for_rows(expert_rows, [&](int64_t begin, int64_t count) {
    kernels::moe_combine_backward(dx_TH, hidden, down, tokens, tape.sorted_slots.data(),
                                  tape.topk_weights.as<float>(), slots, begin, begin + count, ddown,
                                  dweights);
    for (int64_t r = begin; r < begin + count; ++r) {
      const int32_t slot = tape.sorted_slots[static_cast<size_t>(r)];
      rows_of_slots_[static_cast<size_t>(tokens[r] * slots + slot)] = static_cast<int32_t>(r);
      if (exchange == nullptr) std::copy_n(norm + tokens[r] * hidden, hidden, expert_in + r * hidden);
    }
  });
  w_.round_gradient(ddown, expert_rows * hidden);

  const kernels::RouterRule rule = kernels::router_rule(w_.config);
  float* dlogits = scratch(dlogits_, rows * num_experts);
  w_.for_rows(rows, [&](int64_t begin, int64_t count) {
    kernels::router_backward(rule, tape.router_probs.as<float>(), tape.topk_ids.data(), dweights, begin,
                             begin + count, dlogits);
  });
  w_.round_gradient(dlogits, rows * num_experts);
  float* dnorm = scratch(dnorm_, rows * hidden);
  linears_.add({{params.router, &weights.router, dlogits}}, norm, rows, dnorm);

  float* dexpert_in = scratch(dexpert_in_, expert_rows * hidden);
  if (exchange == nullptr) {
    // The router's product runs with the experts' first ones.
    ACCORD_RETURN_IF_ERROR(
        expert_mlps(params, weights, tape, {0, tape.expert_offsets, expert_in, ddown}, dexpert_in));
  } else {
    ACCORD_RETURN_IF_ERROR(linears_.run());  // nothing stays queued when an exchange fails
    ACCORD_RETURN_IF_ERROR(exchanged_expert_mlps(params, weights, tape, ddown, dexpert_in, *exchange));
  }
  w_.for_rows(rows, [&](int64_t begin, int64_t count) {
    kernels::moe_dispatch_backward(dexpert_in, hidden, rows_of_slots_.data(), slots, begin, begin + count,
                                   dnorm);
  });
  if (params.shared.gate < 0 || rows == 0) return absl::OkStatus();
  const RowMlp shared{params.shared,    weights.shared, w_.config.shared_width(),
                      tape.shared_gate, tape.shared_up, tape.shared_act};
  float* dshared = scratch(shared_dnorm_, rows * hidden);
  ACCORD_RETURN_IF_ERROR(row_mlp(shared, tape, rows, dx_TH, dshared));
  w_.for_rows(rows, [&](int64_t begin, int64_t count) {
    for (int64_t i = begin * hidden; i < (begin + count) * hidden; ++i) dnorm[i] += dshared[i];
  });
  return absl::OkStatus();
}

// The gradient of an expert without rows stays as it is.
Status LayerBackward::expert_mlps(const LayerParams& params, const model::LayerWeights& weights,
                                  const model::LayerTape& tape, const ExpertRows& rows, float* din_RH) {
  const int64_t hidden = w_.config.hidden_size;
  const int64_t width = w_.config.moe_intermediate_size;
  const int64_t count = rows.count();
  const auto for_experts = [&](const auto& body) {
    for (int64_t i = 0; i < rows.num_experts(); ++i) {
      const auto e = static_cast<size_t>(rows.first + i);
      const int64_t begin = rows.offsets[static_cast<size_t>(i)];
      body(params.mlp[e], weights.mlp[e], begin, rows.offsets[static_cast<size_t>(i) + 1] - begin);
    }
  };
  const float* act = w_.operand(taped(tape.act, w_.compute_dtype, count, width), act_);
  float* dact = scratch(dact_, count * width);
  for_experts([&](const MlpParams& mlp, const model::MlpWeights& mlp_weights, int64_t begin, int64_t n) {
    linears_.add({{mlp.down, &mlp_weights.down, rows.ddown_RH + begin * hidden}}, act + begin * width, n,
                 dact + begin * width);
  });
  ACCORD_RETURN_IF_ERROR(linears_.run());

  float* dgate = scratch(dgate_, count * width);
  const MatrixView gate = taped(tape.gate, w_.compute_dtype, count, width);
  const MatrixView up = taped(tape.up, w_.compute_dtype, count, width);
  w_.for_rows(count, [&](int64_t begin, int64_t n) {
    const int64_t at = begin * width;
    kernels::swiglu_backward(gate.slice_rows(begin, n), up.slice_rows(begin, n), dact + at, dgate + at,
                             dact + at);
  });
  w_.round_gradient(dgate, count * width);
  w_.round_gradient(dact, count * width);
  for_experts([&](const MlpParams& mlp, const model::MlpWeights& mlp_weights, int64_t begin, int64_t n) {
    linears_.add({{mlp.gate, &mlp_weights.gate, dgate + begin * width},
                  {mlp.up, &mlp_weights.up, dact + begin * width}},
                 rows.in_RH + begin * hidden, n, din_RH + begin * hidden);
  });
  return linears_.run();
}

// What travels out was rounded to the operand dtype before; input gradients travel back in fp32.
Status LayerBackward::exchanged_expert_mlps(const LayerParams& params, const model::LayerWeights& weights,
                                            const model::LayerTape& tape, float* ddown_RH, float* din_RH,
                                            model::ExpertExchange& exchange) {
  const model::ExchangePlan& plan = tape.exchange;
  const int64_t hidden = w_.config.hidden_size;
  const int64_t sent = plan.num_sent();
  const int64_t arrived = plan.num_arrived();
  const int64_t row_bytes = hidden * size_of(w_.compute_dtype);
  const void* leaving = ddown_RH;
  if (w_.compute_dtype == Dtype::kBF16) {
    const MatrixView narrow = travel_out_.matrix(Dtype::kBF16, sent, hidden);
    w_.for_rows(sent, [&](int64_t begin, int64_t count) {
      kernels::narrow(ddown_RH + begin * hidden, narrow.row<BF16>(begin), count * hidden);
    });
    leaving = narrow.data;
  }
  const MatrixView ddown_rows = travel_in_.matrix(w_.compute_dtype, arrived, hidden);
  ACCORD_RETURN_IF_ERROR(exchange.to_owners(plan, leaving, row_bytes, ddown_rows.data));

  float* in = scratch(expert_in_, arrived * hidden);
  float* ddown = scratch(arrived_ddown_, arrived * hidden);
  const MatrixView in_rows = taped(tape.arrived, w_.compute_dtype, arrived, hidden);
  w_.for_rows(arrived, [&](int64_t begin, int64_t count) {
    for (int64_t r = begin; r < begin + count; ++r) {
      const int64_t from = plan.order[static_cast<size_t>(r)];
      kernels::widen(in_rows.slice_rows(from, 1), in + r * hidden);
      kernels::widen(ddown_rows.slice_rows(from, 1), ddown + r * hidden);
    }
  });
  float* din = scratch(arrived_din_, arrived * hidden);
  ACCORD_RETURN_IF_ERROR(
      expert_mlps(params, weights, tape, {exchange.first_held(), plan.expert_offsets, in, ddown}, din));

  const auto float_bytes = hidden * static_cast<int64_t>(sizeof(float));
  const MatrixView returning = travel_in_.matrix(Dtype::kF32, arrived, hidden);
  w_.for_rows(arrived, [&](int64_t begin, int64_t count) {
    model::to_arrival_order(plan, din, float_bytes, begin, begin + count, returning.data);
  });
  return exchange.to_homes(plan, returning.data, float_bytes, din_RH);
}

}  // namespace accord::trainer
