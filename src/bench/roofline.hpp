#pragma once
// What a decode step must read, and the tokens per second that follow from a bandwidth.
//
//   bytes(B) = dense + coverage(B) * experts + B * context * KV row
//   coverage(B) = 1 - (1 - k/E)^B: the expected share of a layer's experts that B tokens of k each touch
//
// in the formats of the plan in use. Dense is every weight that a step reads whole: projections, norms,
// routers, shared experts, the head. Of an embedding table of its own a step reads B rows, which are left
// out.
#include <cstdint>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"

namespace accord::bench {

struct StepBytes {
  double dense = 0.0;
  double experts = 0.0;         // all routed experts of all layers
  double cache_row = 0.0;       // one position of one sequence, all layers
  double experts_chosen = 0.0;  // k/E

  // Share of the experts that `batch` tokens touch.
  double coverage(double batch) const;
  double total(double batch, double context) const;
  // At `bandwidth` bytes per second.
  double tokens_per_second(double batch, double context, double bandwidth) const;
};

// Scales count, alignment does not. `element_bytes`: of the cache. Errors (kInternal): a manifest that lacks
// a parameter.
StatusOr<StepBytes> step_bytes(const ModelConfig& config, const WeightManifest& manifest,
                               int64_t element_bytes);

}  // namespace accord::bench
