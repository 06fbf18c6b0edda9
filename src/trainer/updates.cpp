#include "trainer/updates.hpp"

#include <algorithm>

namespace accord::trainer {

std::vector<SampleRange> split_updates(int64_t num_samples, int64_t group_size, int64_t updates) {
  const int64_t groups = num_samples / group_size;
  const int64_t count = std::min(updates, groups);
  std::vector<SampleRange> ranges;
  size_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t mine = groups / count + (i < groups % count ? 1 : 0);
    ranges.push_back({begin, static_cast<size_t>(mine * group_size)});
    begin += ranges.back().count;
  }
  return ranges;
}

Metrics combine_updates(std::span<const StepReport> reports) {
  Metrics combined = reports[0].metrics;
  if (reports.size() == 1) return combined;
  double all_tokens = 0.0;
  for (const StepReport& report : reports) all_tokens += static_cast<double>(report.num_tokens);
  const double updates = static_cast<double>(reports.size());
  for (auto& [name, value] : combined) {
    if (name.starts_with("mismatch/")) continue;
    if (name == "train/learning_rate") {
      value = reports.back().metrics.at(name);
      continue;
    }
    const bool summed = name == "train/microbatches";
    const bool per_update = name == "train/loss" || name == "train/grad_norm";
    value = 0.0;
    for (const StepReport& report : reports) {
      const double share = summed       ? 1.0
                           : per_update ? 1.0 / updates
                                        : static_cast<double>(report.num_tokens) / all_tokens;
      value += share * report.metrics.at(name);
    }
  }
  return combined;
}

}  // namespace accord::trainer
