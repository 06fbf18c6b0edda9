#pragma once
// router.hpp on CUDA: the same bits and ids, in stream order, for many tokens at once. All pointers are the
// device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "kernels/router/router_rule.hpp"

namespace accord::kernels::cuda {

constexpr int64_t kMaxRouterExperts = 1024;

// logits, scores [tokens, experts] (scores may be logits, or null), bias [experts] or null; ids, weights
// [tokens, k]. experts <= kMaxRouterExperts, groups <= 32. With `replayed`, ids are read instead of written.
void route(const RouterRule& rule, const float* logits, int64_t tokens, const float* bias, bool replayed,
           float* scores, int32_t* ids, float* weights, StreamHandle stream);

}  // namespace accord::kernels::cuda
