// One rank's results, bit for bit, as they were recorded. libtorch picks its matrix kernels by the CPU, so
// the digests are those of one kind of CPU; forward and formats do not depend on it and have tests elsewhere.
#include <torch/version.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "base/hash.hpp"
#include "support/catch.hpp"
#include "unit/trainer/fixture.hpp"

namespace accord::trainer {
namespace {

// "vendor family model" of /proc/cpuinfo and libtorch's version.
std::string platform() {
  std::ifstream file("/proc/cpuinfo");
  std::map<std::string, std::string> found;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    found[line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1)] = line.substr(colon + 2);
  }
  return found["vendor_id"] + " " + found["cpu family"] + " " + found["model"] + ", libtorch " +
         TORCH_VERSION;
}

// Two updates, the second on new weights, and a supervised one: masters, moments, log-probs, metrics.
std::string digest_of(const std::string& model, Dtype dtype, const recipe::PrecisionPart& precision) {
  TrainerOptions options;
  options.compute_dtype = dtype;
  options.optimizer.lr = 1e-2;
  options.tokens_per_microbatch = 40;
  Fixture f(model, options, precision);
  const auto samples = recorded_samples("qwen3_moe", 2);
  Hasher hasher;
  const auto add_metrics = [&](const Metrics& metrics) {
    for (const auto& [name, value] : metrics) {
      hasher.update(name);
      hasher.update(&value, sizeof(value));
    }
  };
  for (uint64_t step = 1; step <= 2; ++step) {
    const auto report = f.trainer->train_step(samples, step);
    REQUIRE(report.ok());
    add_metrics(report->metrics);
    for (const auto& row : report->logprobs) hasher.update(row.data(), row.size() * sizeof(float));
    f.export_weights();
  }
  std::vector<SftSample> sft;
  for (const auto& s : samples) sft.push_back({s.tokens, s.prompt_length});
  const auto report = f.trainer->sft_step(sft, 3);
  REQUIRE(report.ok());
  add_metrics(report->metrics);
  for (const StateTensor& tensor : f.trainer->state()) {
    hasher.update(tensor.name);
    const std::vector<float> values = values_of(tensor);
    hasher.update(values.data(), values.size() * sizeof(float));
  }
  return hasher.hex();
}

}  // namespace

TEST_CASE("one rank computes the recorded bits") {
  const std::string here = platform();
  const std::map<std::string, std::vector<std::string>> recorded{
      {"AuthenticAMD 25 17, libtorch 2.11.0",
       {"1b8ede24841dbc14fc8ffc2c580e3ca7", "ee183e7f1a326fa0c65cc11412319bac",
        "6d7be2fb23ca52202a72d7fa242ff23a"}},
  };
  const std::vector<std::string> digests{
      digest_of("qwen3_moe", Dtype::kBF16, mxfp8_everywhere()),
      digest_of("llama_tied", Dtype::kBF16, {}),
      digest_of("qwen3_dense_tied", Dtype::kF32, mxfp8_everywhere()),
  };
  CAPTURE(here, digests);
  const auto it = recorded.find(here);
  if (it == recorded.end()) {
    std::printf("SKIPPED: no digests are recorded for this platform: %s\n", here.c_str());
    return;
  }
  CHECK(digests == it->second);
}

}  // namespace accord::trainer
