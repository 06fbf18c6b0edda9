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

}  // namespace accord::controller
