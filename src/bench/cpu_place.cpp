#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "bench/cpu_ceilings.hpp"
#include "bench/rollout_policy.hpp"
#include "device/buffer.hpp"
#include "device/thread_pool.hpp"
#include "model/forward.hpp"

namespace accord::bench {
namespace {

class CpuPlace final : public RolloutPlace {
 public:
  explicit CpuPlace(int threads)
      : pool_(threads > 0 ? threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))) {}

  Ceilings bandwidth() override { return cpu_bandwidth(); }
  int64_t free_bytes() override {
    return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  }

  void load(const RandomPolicy& policy) override {
    model_.reset();
    arena_ = must(Memory::allocate(Device(), static_cast<size_t>(policy.manifest.arena_bytes)));
    fill_arena(policy, arena_.as<std::byte>(), pool_);
    model_ = must(model::Model::create(
        policy.config, must(model::bind_weights(policy.config, policy.manifest, arena_.data())), Dtype::kBF16,
        pool_));
  }

  std::unique_ptr<rollout::Engine> engine(const rollout::EngineOptions& options) override {
    return must(rollout::Engine::create(*model_, options, pool_));
  }

  int64_t peak_bytes() override {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return int64_t{usage.ru_maxrss} * 1024;
  }

 private:
  ThreadPool pool_;
  Memory arena_;
  std::unique_ptr<model::Model> model_;
};

}  // namespace

std::unique_ptr<RolloutPlace> cpu_place(int threads) { return std::make_unique<CpuPlace>(threads); }

}  // namespace accord::bench
