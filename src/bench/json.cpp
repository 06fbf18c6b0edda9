#include "bench/json.hpp"

#include <nlohmann/json.hpp>

namespace accord::bench {
namespace {

using Json = nlohmann::ordered_json;

Json header(const std::string& benchmark, const std::string& build, const std::string& device,
            const std::string& note) {
  Json out{{"benchmark", benchmark}, {"build", build}, {"device", device}};
  if (!note.empty()) out["note"] = note;
  return out;
}

Json of(const Ceilings& c) {
  Json out{{"copy_bytes_per_second", c.copy}, {"read_bytes_per_second", c.read}};
  if (c.product > 0.0) {
    out["product_operations_per_second"] = c.product;
    out["product_size"] = c.product_size;
    out["launch_seconds"] = c.launch_seconds;
  }
  return out;
}

Json of(const Line& line, const Table& table) {
  Json out{{"op", line.op},
           {"name", line.name},
           {"column", table.columns()[line.column]},
           {"seconds", line.seconds}};
  if (line.op != "sum") {
    out["read_bytes"] = line.work.read;
    out["written_bytes"] = line.work.written;
    out["operations"] = line.work.operations;
    out["ceiling"] = limit_name(line.bound.limit);
  }
  if (line.bound.seconds > 0.0) {
    out["ceiling_seconds"] = line.bound.seconds;
    out["share_of_ceiling"] = line.bound.seconds / line.seconds;
  }
  return out;
}

Json of(const RolloutResult& r) {
  return {{"format", r.format},
          {"batch", r.batch},
          {"context_positions", r.mean_context},
          {"timed_steps", r.steps},
          {"seconds", r.seconds},
          {"forward_seconds", r.forward_seconds},
          {"sampling_seconds", r.sampling_seconds},
          {"prefill_tokens", r.prompt_tokens},
          {"prefill_seconds", r.prompt_seconds},
          {"tokens_per_second", r.tokens_per_second()},
          {"step_bytes", r.step_bytes},
          {"roofline_tokens_per_second", r.roofline_tokens_per_second},
          {"share_of_roofline", r.tokens_per_second() / r.roofline_tokens_per_second},
          {"peak_memory_bytes", r.peak_bytes}};
}

}  // namespace

std::string to_json(const KernelReport& report, const std::string& build) {
  Json out = header("kernels", build, report.device, report.note);
  out["ceilings"] = of(report.ceilings);
  out["tables"] = Json::array();
  for (const Table& table : report.tables) {
    Json lines = Json::array();
    for (const Line& line : table.lines()) lines.push_back(of(line, table));
    out["tables"].push_back({{"title", table.title()}, {"columns", table.columns()}, {"lines", lines}});
  }
  return out.dump(2);
}

std::string to_json(const RolloutReport& report, const std::string& build) {
  Json out = header("rollout", build, report.device, report.note);
  out["shape"] = report.shape;
  out["layers"] = report.layers;
  out["layers_of_the_shape"] = report.all_layers;
  out["ceilings"] = of(report.ceilings);
  out["results"] = Json::array();
  for (const RolloutResult& r : report.results) out["results"].push_back(of(r));
  return out.dump(2);
}

std::string to_json(const MemoryReport& report, const std::string& build) {
  Json out = header("memory", build, report.device, "");
  out["rows"] = report.rows;
  out["inputs"] = report.inputs;
  out["outputs"] = report.outputs;
  out["results"] = Json::array();
  for (const MemoryResult& r : report.results) {
    Json cells = Json::object();
    for (size_t i = 0; i < r.peak_bytes.size(); ++i) {
      Json cell{{"peak_bytes", r.peak_bytes[i]}};
      if (r.reference_bytes[i] > 0) cell["reference_bytes"] = r.reference_bytes[i];
      cells[memory_phase_name(i)] = cell;
    }
    out["results"].push_back(
        {{"format", r.format}, {"backward", r.mode}, {"weight_bytes", r.weight_bytes}, {"phases", cells}});
  }
  return out.dump(2);
}

}  // namespace accord::bench
