#include <algorithm>
#include <utility>

#include "bench/device_bench.hpp"
#include "bench/rollout_policy.hpp"
#include "model/cuda_model.hpp"

namespace accord::bench {
namespace {

constexpr int64_t kBandwidthBytes = int64_t{2} << 30;
constexpr int64_t kEmulatedBytes = int64_t{1} << 22;

class DevicePlace final : public RolloutPlace {
 public:
  explicit DevicePlace(const Device& device) : gpu_(device) {}

  Ceilings bandwidth() override {
    return measure_bandwidth(gpu_, cuda_is_emulated() ? kEmulatedBytes : kBandwidthBytes);
  }
  int64_t free_bytes() override { return must(gpu_.device().free_bytes()); }

  void load(const RandomPolicy& policy) override {
    model_.reset();
    arena_ = Memory();
    reset_memory_peak(gpu_.device());
    arena_ = gpu_.allocate(static_cast<size_t>(policy.manifest.arena_bytes));
    fill_arena(policy, arena_.as<std::byte>(), gpu_);
    model_ = must(model::CudaModel::create(
        policy.config, must(model::bind_weights(policy.config, policy.manifest, arena_.data())),
        gpu_.device(), gpu_.stream()));
    must(model_->keep_expert_fragments());
    must(model_->check_weights());
  }

  std::unique_ptr<rollout::Engine> engine(const rollout::EngineOptions& options) override {
    reset_memory_peak(gpu_.device());
    return must(rollout::Engine::create(*model_, options));
  }
  int64_t peak_bytes() override { return memory_use(gpu_.device()).peak; }

 private:
  const Gpu gpu_;
  Memory arena_;
  std::unique_ptr<model::CudaModel> model_;
};

}  // namespace

std::unique_ptr<RolloutPlace> device_place(const Device& device) {
  return std::make_unique<DevicePlace>(device);
}

}  // namespace accord::bench
