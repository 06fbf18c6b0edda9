// The plan for machines (plan.json) and for people (accord plan).
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "precision/plan.hpp"

namespace accord::precision {
namespace {

using Json = nlohmann::ordered_json;

std::string_view format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kMXFP8:
      return "mxfp8";
    case WeightFormat::kNVFP4:
      return "nvfp4";
    case WeightFormat::kF32:
      return "fp32";
  }
  return "?";
}

// Empty for BF16, which has no scales.
std::string_view layout_name(const PlanRow& row) {
  switch (row.format) {
    case WeightFormat::kBF16:
    case WeightFormat::kF32:
      return "";
    case WeightFormat::kMXFP8:
      return "1x32";
    case WeightFormat::kNVFP4:
      return row.layout == recipe::ScaleLayout::k16x16 ? "16x16" : "1x16";
  }
  return "?";
}

std::string_view scope_name(const PlanRow& row) {
  if (row.format != WeightFormat::kNVFP4) {
    return "";
  }
  return row.scope == recipe::ScaleScope::kTensor ? "tensor" : "token";
}

std::string_view four_over_six_name(recipe::FourOverSix value) {
  switch (value) {
    case recipe::FourOverSix::kNone:
      return "none";
    case recipe::FourOverSix::kWeights:
      return "weights";
    case recipe::FourOverSix::kActivations:
      return "activations";
    case recipe::FourOverSix::kAll:
      return "all";
  }
  return "?";
}

Json to_json_value(std::string_view text) { return text.empty() ? Json(nullptr) : Json(std::string(text)); }

Json row_json(const PlanRow& row) {
  Json out;
  out["name"] = row.name;
  out["shape"] = row.shape;
  out["format"] = std::string(format_name(row.format));
  out["layout"] = to_json_value(layout_name(row));
  out["scope"] = to_json_value(scope_name(row));
  out["unit"] = to_json_value(row.unit);
  if (row.four_over_six != recipe::FourOverSix::kNone) {
    out["four_over_six"] = std::string(four_over_six_name(row.four_over_six));
    out["four_over_six_error"] = row.four_over_six_error == recipe::FourOverSixError::kMse ? "mse" : "mae";
    out["four_over_six_range"] = row.four_over_six_range;
  }
  if (row.e5m2_gradients) {
    out["e5m2_gradients"] = true;
  }
  if (row.fast_math) {
    out["fast_math"] = true;
  }
  out["weight_decay"] = row.weight_decay;
  out["reason"] = row.reason;
  return out;
}

// "...experts.7.up_proj.weight" -> "...experts.*.up_proj.weight".
std::string without_expert(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t found = name.find(kExperts);
  if (found == std::string::npos) {
    return name;
  }
  const size_t begin = found + kExperts.size();
  const size_t end = std::min(name.find('.', begin), name.size());
  return name.substr(0, begin) + "*" + name.substr(end);
}

struct Line {
  std::vector<std::string> cells;
  int64_t count = 0;
};

// One line per weight; weights that differ in nothing but the expert's number are counted on one line.
std::vector<Line> make_lines(const PrecisionPlan& plan) {
  std::vector<Line> lines;
  std::map<std::vector<std::string>, size_t> seen;
  for (const PlanRow& row : plan.rows) {
    std::string shape;
    for (const int64_t dim : row.shape) {
      if (!shape.empty()) {
        shape += 'x';
      }
      shape += std::to_string(dim);
    }
    std::vector<std::string> cells = {without_expert(row.name),
                                      std::move(shape),
                                      std::string(format_name(row.format)),
                                      std::string(layout_name(row)),
                                      std::string(scope_name(row)),
                                      row.weight_decay ? "yes" : "no",
                                      row.reason};
    const auto [place, fresh] = seen.emplace(cells, lines.size());
    if (fresh) {
      lines.push_back({std::move(cells), 0});
    }
    ++lines[place->second].count;
  }
  return lines;
}

}  // namespace

std::string PrecisionPlan::to_json() const {
  Json out;
  out["contract"] = std::string(kContractVersion);
  out["digest"] = digest;
  if (!mla.empty()) {
    out["mla"] = mla;
  }
  out["warnings"] = warnings;
  out["weights"] = Json::array();
  for (const PlanRow& row : rows) {
    out["weights"].push_back(row_json(row));
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string PrecisionPlan::to_text() const {
  const std::vector<std::string> header = {"weight", "shape", "format", "layout", "scope", "decay", "reason"};
  const std::vector<Line> lines = make_lines(*this);
  std::vector<size_t> widths;
  for (const std::string& title : header) {
    widths.push_back(title.size());
  }
  for (const Line& line : lines) {
    for (size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], line.cells[i].size());
    }
  }
  std::string out;
  const auto add = [&](std::string_view count, const std::vector<std::string>& cells) {
    std::string text = fmt::format("{:>5}", count);
    for (size_t i = 0; i < cells.size(); ++i) {
      text += fmt::format("  {:<{}}", cells[i], widths[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  add("count", header);
  for (const Line& line : lines) {
    add(std::to_string(line.count), line.cells);
  }
  if (!mla.empty()) {
    out += fmt::format("latent attention: {} form, in both pools\n", mla);
  }
  return out;
}

}  // namespace accord::precision
