#include "controller/policy_setup.hpp"

#include "weights/manifest.hpp"

namespace accord::controller {

StatusOr<PolicySetup> make_policy_setup(const SetupJob& job) {
  PolicySetup setup;
  ACCORD_ASSIGN_OR_RETURN(setup.recipe, recipe::parse_recipe(job.recipe_yaml, "the controller's recipe"));
  ACCORD_ASSIGN_OR_RETURN(setup.hf, checkpoint::read_hf_config(setup.recipe.model.checkpoint));
  setup.hf.model.mla.form = setup.recipe.model.mla;
  ACCORD_ASSIGN_OR_RETURN(setup.plan, precision::build_plan(setup.hf.model, setup.recipe.precision));
  ACCORD_ASSIGN_OR_RETURN(setup.manifest, weights::build_manifest(setup.hf.model, setup.plan));
  if (setup.plan.digest != job.plan_digest || setup.manifest.digest != job.manifest_digest) {
    return make_error(ExitCode::kBadRecipe,
                      fmt::format("this worker's plan {} and manifest {} are not the controller's ({} and "
                                  "{}): its build or its copy of "
                                  "{} differs",
                                  setup.plan.digest, setup.manifest.digest, job.plan_digest,
                                  job.manifest_digest, setup.recipe.model.checkpoint));
  }
  return setup;
}

}  // namespace accord::controller
