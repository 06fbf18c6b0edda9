#include "controller/policy_setup.hpp"

#include "precision/expert_shards.hpp"
#include "weights/manifest.hpp"

namespace accord::controller {

StatusOr<PolicySetup> make_policy_setup(const SetupJob& job, int64_t expert_shards) {
  PolicySetup setup;
  ACCORD_ASSIGN_OR_RETURN(setup.recipe, recipe::parse_recipe(job.recipe_yaml, "the controller's recipe"));
  ACCORD_ASSIGN_OR_RETURN(setup.hf, checkpoint::read_hf_config(setup.recipe.model.checkpoint));
  setup.hf.model.mla.form = setup.recipe.model.mla;
  ACCORD_ASSIGN_OR_RETURN(setup.plan, precision::build_plan(setup.hf.model, setup.recipe.precision));
  setup.plan.digest = precision::digest_with_expert_shards(setup.plan.digest, expert_shards);
  ACCORD_ASSIGN_OR_RETURN(setup.manifest, weights::build_manifest(setup.hf.model, setup.plan));
  if (setup.plan.digest != job.plan_digest || setup.manifest.digest != job.manifest_digest) {
    return make_error(ExitCode::kBadRecipe,
                      fmt::format("this worker's plan {} and manifest {} are not the controller's ({} and "
                                  "{}): its build, its copy of {} or "
                                  "the number of shards of its experts ({}) differs",
                                  setup.plan.digest, setup.manifest.digest, job.plan_digest,
                                  job.manifest_digest, setup.recipe.model.checkpoint, expert_shards));
  }
  return setup;
}

Status check_device(const char* pool, recipe::DeviceChoice choice, const recipe::Recipe& recipe,
                    const Device& device) {
  const bool wants_cuda = choice == recipe::DeviceChoice::kCuda;
  if (choice != recipe::DeviceChoice::kAuto && wants_cuda != device.is_cuda()) {
    return recipe_error(
        "{}.device is {}, but a worker of that pool was started with --device {}; start it with --device {}, "
        "or "
        "change the key",
        pool, wants_cuda ? "cuda" : "cpu", to_string(device.id()), wants_cuda ? "cuda:N" : "cpu");
  }
  if (device.is_cuda() && recipe.model.compute_dtype != Dtype::kBF16) {
    return recipe_error(
        "model.compute_dtype float32 is computed on the CPU only, and a worker was started with --device {} "
        "(use bfloat16, or --device cpu)",
        to_string(device.id()));
  }
  if (device.is_cuda() && recipe.trainer.expert_parallel > 1) {
    return recipe_error(
        "trainer.expert_parallel is {}, and a worker was started with --device {}: on CUDA every trainer has "
        "all experts (use 1, or --device cpu)",
        recipe.trainer.expert_parallel, to_string(device.id()));
  }
  return absl::OkStatus();
}

StatusOr<SetupReport> report_of(const Device& device, const std::string& products, int64_t arena_bytes,
                                int32_t threads) {
  SetupReport report;
  ACCORD_ASSIGN_OR_RETURN(report.device, device.describe());
  ACCORD_ASSIGN_OR_RETURN(report.arithmetic, device.arithmetic());
  if (!products.empty()) report.arithmetic += ", " + products;
  report.arena_bytes = arena_bytes;
  report.threads = threads;
  return report;
}

}  // namespace accord::controller
