#pragma once
// Backward of the mixture of experts around the experts themselves. T tokens, K slots, R = T*K rows sorted by
// expert, E experts, H hidden.
//
// combine   y[t] = sum over slots k of weight[t,k] * down[row(t,k)]
//           ddown[row] = weight * dy[t];   dweight[t,k] = sum over H of dy[t] * down[row]
// dispatch  x_row[row(t,k)] = x[t]
//           dx[t] = sum over k, ascending, of dx_row[row(t,k)]
// router    p = softmax(logits); chosen ids; weight_k = p_k (or p_k / S, S = sum of the chosen, when
// normalized)
//           normalized: dp_k = (dweight_k - sum_j dweight_j weight_j) / S;  else dp_k = dweight_k
//           dlogits_e = p_e * (dp_e - sum_j p_j dp_j)
// sigmoid   s = sigmoid(logits); weight_k = f s_k / S (S = sum of the chosen + 1e-20, 1 when not normalized)
//           ds_k = f (dweight_k - sum_j dweight_j s_j / S when normalized) / S;  dlogits_k = ds_k s_k (1 -
//           s_k)
// The choice of experts is constant.
#include <cstdint>

#include "device/tensor_view.hpp"
#include "kernels/router/router.hpp"

namespace accord::kernels {

// Rows [row_begin, row_end) of the sorted order. `tokens`, `slots` [R]; weights_TK, dweights_TK fp32.
void moe_combine_backward(const float* dy_TH, int64_t hidden, MatrixView down_RH, const int32_t* tokens,
                          const int32_t* slots, const float* weights_TK, int64_t num_slots, int64_t row_begin,
                          int64_t row_end, float* ddown_RH, float* dweights_TK);

// Tokens [token_begin, token_end); rows_TK[t*K+k] = row(t,k). dx_TH is added to.
void moe_dispatch_backward(const float* dx_RH, int64_t hidden, const int32_t* rows_TK, int64_t num_slots,
                           int64_t token_begin, int64_t token_end, float* dx_TH);

// Tokens [token_begin, token_end). probs_TE, dlogits_TE fp32.
void router_backward(const float* probs_TE, int64_t num_experts, const int32_t* ids_TK,
                     const float* dweights_TK, int64_t num_slots, bool normalized, int64_t token_begin,
                     int64_t token_end, float* dlogits_TE);

// The same for either kind of scores.
void router_backward(const RouterRule& rule, const float* scores_TE, const int32_t* ids_TK,
                     const float* dweights_TK, int64_t token_begin, int64_t token_end, float* dlogits_TE);

}  // namespace accord::kernels
