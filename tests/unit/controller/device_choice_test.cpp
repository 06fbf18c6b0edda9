#include "controller/device_choice.hpp"

#include <cstring>

#include "controller/engine_limits.hpp"
#include "controller/policy_arena.hpp"
#include "controller/policy_setup.hpp"
#include "support/catch.hpp"

namespace accord::controller {
namespace {

using recipe::DeviceChoice;

recipe::Recipe recipe_of(DeviceChoice rollout, DeviceChoice trainer) {
  recipe::Recipe recipe;
  recipe.rollout.device = rollout;
  recipe.rollout.workers = 3;
  recipe.trainer.device = trainer;
  recipe.trainer.workers = 2;
  recipe.trainer.expert_parallel = 1;
  recipe.model.compute_dtype = Dtype::kBF16;
  return recipe;
}

Machine with(std::vector<int> indices) { return {std::move(indices), false}; }
Machine without() { return {unavailable_error("this machine has no CUDA device"), false}; }

bool mentions(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

std::vector<int> indices_of(const std::vector<DeviceId>& devices) {
  std::vector<int> indices;
  indices.reserve(devices.size());
  for (const DeviceId& id : devices) {
    indices.push_back(id.is_cuda() ? id.index : -1);
  }
  return indices;
}

}  // namespace

TEST_CASE("workers go round the usable devices with rollout first and any number shares one") {
  const auto chosen = choose_devices(recipe_of(DeviceChoice::kCuda, DeviceChoice::kAuto), with({0, 2}));
  REQUIRE(chosen.ok());
  CHECK(chosen->cuda);
  CHECK(indices_of(chosen->rollout) == std::vector<int>{0, 2, 0});
  CHECK(indices_of(chosen->trainer) == std::vector<int>{2, 0});
  const auto one = choose_devices(recipe_of(DeviceChoice::kAuto, DeviceChoice::kCuda), with({1}));
  REQUIRE(one.ok());
  CHECK(indices_of(one->rollout) == std::vector<int>{1, 1, 1});
  CHECK(indices_of(one->trainer) == std::vector<int>{1, 1});
  const recipe::Recipe resolved = with_devices(recipe_of(DeviceChoice::kAuto, DeviceChoice::kCuda), *one);
  CHECK(resolved.rollout.device == DeviceChoice::kCuda);
  CHECK(resolved.trainer.device == DeviceChoice::kCuda);
}

TEST_CASE("auto takes CUDA where the recipe can be computed there and says why it does not") {
  recipe::Recipe recipe = recipe_of(DeviceChoice::kAuto, DeviceChoice::kAuto);
  CHECK(choose_devices(recipe, with({0}))->cuda);
  const auto none = choose_devices(recipe, without());
  REQUIRE(none.ok());
  CHECK(!none->cuda);
  CHECK(mentions(none->reason, "no CUDA device"));
  CHECK(indices_of(none->rollout) == std::vector<int>{-1, -1, -1});
  CHECK(with_devices(recipe, *none).rollout.device == DeviceChoice::kCpu);
  Machine emulated = with({0});
  emulated.emulated = true;
  CHECK(mentions(choose_devices(recipe, emulated)->reason, "emulated"));
  CHECK(!choose_devices(recipe, emulated)->cuda);
  recipe.model.compute_dtype = Dtype::kF32;
  CHECK(mentions(choose_devices(recipe, with({0}))->reason, "model.compute_dtype"));
  recipe.model.compute_dtype = Dtype::kBF16;
  recipe.trainer.expert_parallel = 2;
  CHECK(mentions(choose_devices(recipe, with({0}))->reason, "trainer.expert_parallel is 2"));
  const auto asked = choose_devices(recipe_of(DeviceChoice::kCpu, DeviceChoice::kAuto), with({0}));
  REQUIRE(asked.ok());
  CHECK(!asked->cuda);
}

TEST_CASE("a device that was asked for and is not there ends the run before it starts") {
  const auto refused = choose_devices(recipe_of(DeviceChoice::kAuto, DeviceChoice::kCuda), without());
  CHECK(exit_code(refused.status()) == ExitCode::kUnavailable);
  const std::string message(message_of(refused.status()));
  CHECK(mentions(message, "trainer.device is cuda: this machine has no CUDA device"));
  CHECK(mentions(message, "use cpu"));
}

TEST_CASE("a worker on another device than its pool's is refused with the key and the remedy") {
  const recipe::Recipe recipe = recipe_of(DeviceChoice::kCuda, DeviceChoice::kAuto);
  const Status status = check_device("rollout", recipe.rollout.device, recipe, Device());
  CHECK(exit_code(status) == ExitCode::kBadRecipe);
  const std::string message(message_of(status));
  CHECK(mentions(message, "rollout.device is cuda"));
  CHECK(mentions(message, "--device cpu"));
  CHECK(mentions(message, "--device cuda:N"));
  CHECK(check_device("trainer", recipe.trainer.device, recipe, Device()).ok());
  const auto report = report_of(Device(), "", 7, 2);
  REQUIRE(report.ok());
  CHECK(report->device == "cpu");
  CHECK(report->arithmetic == "cpu");
  CHECK(report_of(Device(), "cuBLASLt 130100 0123", 7, 2)->arithmetic == "cpu, cuBLASLt 130100 0123");
}

TEST_CASE("the cache of a device is shared by the workers on it") {
  CHECK(device_cache_bytes(1600, 1400, 1, 1) == 400);
  CHECK(device_cache_bytes(1600, 1400, 4, 1) == 100);
  CHECK(device_cache_bytes(1600, 1400, 4, 3) == 200);
  CHECK(device_cache_bytes(1600, 300, 1, 1) == 150);
}

TEST_CASE("on the CPU a policy computes from the arena that the host has") {
  const auto arena = PolicyArena::create(Device(), nullptr, 64);
  REQUIRE(arena.ok());
  CHECK(!(*arena)->on_device());
  CHECK((*arena)->data() == (*arena)->host().data());
  REQUIRE((*arena)->corrupt(5, std::byte{0x41}).ok());
  REQUIRE((*arena)->upload().ok());
  REQUIRE((*arena)->download().ok());
  CHECK((*arena)->data()[5] == std::byte{0x41});
  REQUIRE((*arena)->corrupt(5, std::byte{0x40}).ok());
  CHECK((*arena)->data()[5] == std::byte{0x01});
}

}  // namespace accord::controller
