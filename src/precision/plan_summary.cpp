#include "precision/plan_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace accord::precision {
namespace {

constexpr std::string_view kRouted = ".mlp.experts.";
constexpr std::string_view kShared = ".mlp.shared_experts.";

int64_t numel(const PlanRow& row) {
  int64_t n = 1;
  for (const int64_t dim : row.shape) {
    n *= dim;
  }
  return n;
}

// gate and up of one MLP share an outer scale, which is counted with gate.
int64_t bytes_of(const PlanRow& row) {
  const int64_t n = numel(row);
  if (row.format == WeightFormat::kMXFP8) {
    return n + n / kMxfp8Block;
  }
  if (row.format == WeightFormat::kNVFP4) {
    return n / 2 + n / kNvfp4Block + (row.name.ends_with(".up_proj.weight") ? 0 : 4);
  }
  return row.format == WeightFormat::kBF16 ? 2 * n : 4 * n;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// model.layers.3.mlp.experts.7.up_proj.weight -> mlp.experts.*.up_proj
std::string module_of(std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) {
    name.remove_suffix(kWeight.size());
  }
  std::string out;
  bool in_layer = false;
  while (!name.empty()) {
    const size_t end = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, end);
    if (!all_digits(part)) {
      out += out.empty() ? "" : ".";
      out += part;
    } else if (!in_layer) {
      in_layer = true;
      out.clear();
    } else {
      out += ".*";
    }
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return out;
}

std::string count_text(int64_t n) {
  const double value = static_cast<double>(n);
  if (n >= 1'000'000'000) {
    return fmt::format("{:.1f} B", value / 1e9);
  }
  return n >= 1'000'000 ? fmt::format("{:.1f} M", value / 1e6) : fmt::format("{}", n);
}

std::string size_text(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) {
    return fmt::format("{:.6g} GiB", value / static_cast<double>(int64_t{1} << 30));
  }
  return bytes >= int64_t{1} << 20 ? fmt::format("{:.6g} MiB", value / static_cast<double>(int64_t{1} << 20))
                                   : fmt::format("{} B", bytes);
}

}  // namespace

std::string_view format_word(WeightFormat format) {
  constexpr std::string_view kWords[] = {"bf16", "mxfp8", "nvfp4"};
  const auto index = static_cast<size_t>(format);
  return index < std::size(kWords) ? kWords[index] : "fp32";
}

PlanGroup PlanSummary::total(WeightFormat format) const {
  PlanGroup sum;
  sum.format = format;
  for (const PlanGroup& group : groups) {
    if (group.format == format) {
      sum.weights += group.weights;
      sum.parameters += group.parameters;
      sum.bytes += group.bytes;
    }
  }
  return sum;
}

std::string PlanSummary::to_text() const {
  std::string out = fmt::format("parameters        {}", count_text(parameters));
  if (experts() > 0) {
    out += fmt::format("; experts {}, of them routed {}", count_text(experts()), count_text(routed));
  }
  out += "\n";
  std::vector<WeightFormat> formats;
  for (const PlanGroup& group : groups) {
    if (std::find(formats.begin(), formats.end(), group.format) == formats.end()) {
      formats.push_back(group.format);
    }
  }
  for (const WeightFormat format : formats) {
    const PlanGroup sum = total(format);
    out += fmt::format("{:<16}  {} in {} weights, {}\n", fmt::format("in {}", format_word(format)),
                       count_text(sum.parameters), sum.weights, size_text(sum.bytes));
  }
  size_t width = 0;
  for (const PlanGroup& group : groups) {
    width = std::max(width, group.module.size());
  }
  for (const PlanGroup& group : groups) {
    out += fmt::format("  {:<{}}  {:>6} weights  {:>9}  {:<5}  {}\n", group.module, width, group.weights,
                       count_text(group.parameters), format_word(group.format), size_text(group.bytes));
  }
  return out;
}

PlanSummary summarize(const PrecisionPlan& plan) {
  PlanSummary summary;
  std::map<std::pair<std::string, WeightFormat>, size_t> places;
  for (const PlanRow& row : plan.rows) {
    const int64_t n = numel(row);
    summary.parameters += n;
    summary.routed += row.name.find(kRouted) != std::string::npos ? n : 0;
    summary.shared += row.name.find(kShared) != std::string::npos ? n : 0;
    std::string module = module_of(row.name);
    const auto [place, fresh] = places.emplace(std::pair(module, row.format), summary.groups.size());
    if (fresh) {
      summary.groups.push_back({std::move(module), row.format, 0, 0, 0});
    }
    PlanGroup& group = summary.groups[place->second];
    ++group.weights;
    group.parameters += n;
    group.bytes += bytes_of(row);
  }
  return summary;
}

}  // namespace accord::precision
