#include "device_policy.hpp"

#include <cstdlib>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/philox.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "device/thread_pool.hpp"
#include "weights/export.hpp"
#include "weights/manifest.hpp"

namespace gpu_test {

using namespace accord;

namespace {

DevicePolicy make_policy(const Gpu& gpu, const ModelConfig& config, WeightFormat format,
                         const weights::Masters& masters) {
  DevicePolicy policy;
  policy.config = config;
  policy.plan = uniform_plan(config, format);
  policy.manifest = must(weights::build_manifest(config, policy.plan));
  policy.host = must(weights::Arena::create(policy.manifest.arena_bytes));
  ThreadPool pool(1);
  must(weights::export_weights(policy.manifest, policy.plan, masters, *policy.host, pool).status());
  policy.arena = gpu.upload(policy.host->data(), static_cast<size_t>(policy.host->size()));
  return policy;
}

}  // namespace

model::PolicyWeights DevicePolicy::weights() const {
  return must(model::bind_weights(config, manifest, arena.data()));
}

model::PolicyWeights DevicePolicy::host_weights() const {
  return must(model::bind_weights(config, manifest, host->data()));
}

std::string test_data() {
  const char* folder = std::getenv("ACCORD_TEST_DATA");
  return folder == nullptr ? ACCORD_TEST_DATA : folder;
}

precision::PrecisionPlan uniform_plan(const ModelConfig& config, WeightFormat format,
                                      const std::vector<std::string>& high_precision) {
  recipe::PrecisionPart part;
  part.high_precision = high_precision;
  if (format != WeightFormat::kBF16) {
    recipe::PrecisionConfig chosen;
    chosen.name = "chosen";
    chosen.format = format;
    part.configs = {chosen};
    part.matchers = {{"all", "*", chosen.name}};
  }
  return must(precision::build_plan(config, part));
}

DevicePolicy checkpoint_policy(const Gpu& gpu, const std::string& name, WeightFormat format) {
  const auto source = must(checkpoint::HfCheckpoint::open(test_data() + "/hf/" + name));
  std::map<std::string, int64_t> sizes;
  for (const ParamSpec& spec : source.specs()) {
    sizes[spec.name] = spec.numel();
  }
  return make_policy(gpu, source.config(), format,
                     [&](const std::string& weight) -> StatusOr<weights::Master> {
                       std::vector<float> values(static_cast<size_t>(sizes.at(weight)));
                       ACCORD_RETURN_IF_ERROR(source.read_f32(weight, values));
                       return weights::Master(std::move(values));
                     });
}

DevicePolicy random_policy(const Gpu& gpu, const ModelConfig& config, WeightFormat format, uint64_t seed) {
  std::map<std::string, std::vector<float>> masters;
  uint64_t stream = 0;
  for (const ParamSpec& spec : parameter_specs(config)) {
    PhiloxStream random(seed, stream++);
    std::vector<float>& values = masters[spec.name];
    values.resize(static_cast<size_t>(spec.numel()));
    const bool norm = spec.role == ParamRole::kNorm;
    for (float& value : values) {
      value = static_cast<float>(norm ? 1.0 + 0.1 * random.next_normal() : 0.15 * random.next_normal());
    }
  }
  return make_policy(gpu, config, format, [&](const std::string& weight) -> StatusOr<weights::Master> {
    return weights::Master(std::span<const float>(masters.at(weight)));
  });
}

}  // namespace gpu_test
