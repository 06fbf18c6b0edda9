#include <nlohmann/json.hpp>

#include "bench/json.hpp"
#include "bench/measure.hpp"
#include "bench/table.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::bench;

namespace {

Ceilings ceilings() {
  Ceilings c;
  c.copy = 4e12;
  c.read = 5e12;
  c.product = 1e15;
  c.product_size = 8192;
  c.launch_seconds = 4e-6;
  return c;
}

}  // namespace

TEST_CASE("the ceiling that binds") {
  const Ceilings c = ceilings();
  CHECK(bound_of(c, {2e12, 2e12, 0}).limit == Limit::kCopy);
  CHECK(bound_of(c, {2e12, 2e12, 0}).seconds == 1.0);
  CHECK(bound_of(c, {5e12, 0, 0}).limit == Limit::kRead);
  CHECK(bound_of(c, {5e12, 0, 0}).seconds == 1.0);
  CHECK(bound_of(c, {5e12, 0.6e12, 0}).limit == Limit::kCopy);  // more than a tenth is written
  CHECK(bound_of(c, {5e12, 0, 2e15}).limit == Limit::kProduct);
  CHECK(bound_of(c, {5e12, 0, 2e15}).seconds == 2.0);
  CHECK(bound_of({}, {5e12, 0, 2e15}).seconds == 0.0);  // nothing was measured
}

TEST_CASE("bytes of weights count their scales") {
  CHECK(weight_bytes(WeightFormat::kBF16, 64) == 128.0);
  CHECK(weight_bytes(WeightFormat::kMXFP8, 64) == 66.0);
  CHECK(weight_bytes(WeightFormat::kNVFP4, 64) == 36.0);
}

TEST_CASE("units") {
  CHECK(bytes_text(37.7e6) == "37.7 MB");
  CHECK(bytes_text(512) == "0.51 KB");
  CHECK(operations_text(17.24e9) == "17.2 GFLOP");
  CHECK(microseconds_text(12.14e-6) == "12.1 µs");
  CHECK(microseconds_text(668.4e-6) == "668 µs");
}

TEST_CASE("a table adds up, and leaves sums out when it is not whole") {
  Table table(ceilings(), "layer", {"BF16", "MXFP8"});
  table.add(0, "gemm", "q", {2e6, 2e6, 0}, 2e-6);
  table.add(0, "rope", "rotary", {4e6, 4e6, 0}, 2e-6);
  table.add(1, "gemm", "q", {1e6, 1e6, 0}, 1e-6);
  table.add_none(1, "rotary");
  table.add_total(0, "sum", table.sum(0), table.ideal(0));
  CHECK(table.sum(0) == 4e-6);
  CHECK(table.lines().size() == 4);
  CHECK(table.markdown() ==
        "| layer | BF16 | MXFP8 |\n|---|---|---|\n"
        "| q | 4.00 MB, 2.0 µs, 50 % of copy | 2.00 MB, 1.0 µs, 50 % of copy |\n"
        "| rotary | 8.00 MB, 2.0 µs, 100 % of copy |  |\n"
        "| sum | **4 µs**, 75 % |  |\n");
  Table some(ceilings(), "layer", {"BF16"}, "gemm");
  CHECK(some.wants("gemm"));
  CHECK(!(some.wants("rope")));
  some.add(0, "gemm", "q", {2e6, 2e6, 0}, 2e-6);
  some.add_total(0, "sum", some.sum(0), some.ideal(0));
  CHECK(some.lines().size() == 1);
}

TEST_CASE("a plain read of the same weights is the ceiling where it takes longer") {
  Table table(ceilings(), "experts", {"BF16"});
  table.add_beside_read(0, "gemm", "few rows", {5e6, 0, 0}, 4e-6, 3e-6);
  table.add_beside_read(0, "gemm", "many rows", {5e6, 0, 4e9}, 8e-6, 3e-6);
  CHECK(table.lines()[0].bound.limit == Limit::kSameRead);
  CHECK(table.lines()[0].bound.seconds == 3e-6);
  CHECK(table.lines()[1].bound.limit == Limit::kProduct);
}

TEST_CASE("reports are JSON whose keys carry units") {
  KernelReport kernels;
  kernels.device = "cuda:0";
  kernels.ceilings = ceilings();
  kernels.tables.emplace_back(ceilings(), "layer", std::vector<std::string>{"BF16"});
  kernels.tables[0].add(0, "gemm", "q \"wide\"", {2e6, 2e6, 1e6}, 2e-6);
  kernels.tables[0].add_total(0, "sum of the layer", 2e-6, 1e-6);
  const auto k = nlohmann::json::parse(to_json(kernels, "build 1"));
  CHECK(k["benchmark"] == "kernels");
  CHECK(k["build"] == "build 1");
  CHECK(k["ceilings"]["copy_bytes_per_second"] == 4e12);
  const auto& line = k["tables"][0]["lines"][0];
  CHECK(line["name"] == "q \"wide\"");
  CHECK(line["column"] == "BF16");
  CHECK(line["seconds"] == 2e-6);
  CHECK(line["written_bytes"] == 2e6);
  CHECK(line["ceiling"] == "copy");
  CHECK(line["share_of_ceiling"] == 0.5);
  CHECK(k["tables"][0]["lines"][1]["op"] == "sum");

  RolloutReport rollout;
  RolloutResult result;
  result.format = "bf16";
  result.batch = 8;
  result.steps = 4;
  result.seconds = 2.0;
  result.roofline_tokens_per_second = 64.0;
  rollout.results.push_back(result);
  const auto r = nlohmann::json::parse(to_json(rollout, ""));
  CHECK(r["results"][0]["tokens_per_second"] == 16.0);
  CHECK(r["results"][0]["share_of_roofline"] == 0.25);

  MemoryReport memory;
  memory.results.push_back({"mxfp8", "quantized", {3, 2, 5}, {4, 0, 0}, 1});
  const auto m = nlohmann::json::parse(to_json(memory, ""));
  CHECK(m["results"][0]["phases"]["end_to_end"]["peak_bytes"] == 5);
  CHECK(m["results"][0]["phases"]["forward"]["reference_bytes"] == 4);
  CHECK(!(m["results"][0]["phases"]["backward"].contains("reference_bytes")));
}
