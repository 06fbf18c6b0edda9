#pragma once
// How a model routes, on any device (router.hpp, router_cuda.hpp).
#include <cstdint>

#include "base/router_scoring.hpp"

namespace accord::kernels {

inline constexpr float kRouterEpsilon = 1e-20F;

// How a model routes.
struct RouterRule {
  RouterScoring scoring = RouterScoring::kSoftmax;
  int64_t experts = 0;
  int64_t k = 0;
  int64_t groups = 1;
  int64_t chosen_groups = 1;
  bool normalize = true;
  float factor = 1.0F;
};

}  // namespace accord::kernels
