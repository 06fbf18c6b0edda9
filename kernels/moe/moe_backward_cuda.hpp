#pragma once
// moe_backward.hpp on CUDA, in stream order. All pointers are the device's. Deterministic; the sum over H in
// dweights has an order of its own, the rest has the CPU's bits before the last rounding.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/router/router_rule.hpp"

namespace accord::kernels::cuda {

// R = T*K sorted rows. dy [T,H] contiguous fp32; down [R,H] bf16; tokens, slots [R]; weights, dweights [T,K]
// fp32; ddown [R,H] contiguous bf16, rounded once.
void moe_combine_backward(const float* dy, int64_t hidden, MatrixView down, const int32_t* tokens,
                          const int32_t* slots, const float* weights, int64_t num_slots, BF16* ddown,
                          float* dweights, StreamHandle stream);

// dx_rows [R,H] fp32; slot_rows [T,K]; dx [T,H] contiguous fp32 is added to, slots ascending.
void moe_dispatch_backward(const float* dx_rows, int64_t hidden, const int32_t* slot_rows, int64_t num_slots,
                           int64_t tokens, float* dx, StreamHandle stream);

// scores [T,E], ids [T,K], dweights [T,K] -> dlogits [T,E] contiguous bf16.
void router_backward(const RouterRule& rule, const float* scores, const int32_t* ids, const float* dweights,
                     int64_t tokens, BF16* dlogits, StreamHandle stream);

}  // namespace accord::kernels::cuda
