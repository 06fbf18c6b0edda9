#include "controller/rollout_phase.hpp"

#include <map>
#include <mutex>
#include <optional>

namespace accord::controller {

StatusOr<std::vector<RolledSample>> roll_out(const Pools& pools, const RolloutPhase& phase,
                                             uint64_t weight_version,
                                             const std::function<void(size_t)>& on_progress) {
  const size_t num_workers = pools.rollout.size();
  const size_t num_prompts = phase.prompts.size();
  const auto num_samples = static_cast<size_t>(phase.num_samples);

  // Prompts are dealt out in contiguous runs of equal length (up to one). A sample's key names its slot.
  std::vector<GenerateJob> jobs(num_workers);
  std::map<SampleKey, std::pair<size_t, size_t>> slots;  // key -> (slot, prompt)
  std::map<uint64_t, uint32_t> occurrences;
  for (size_t p = 0; p < num_prompts; ++p) {
    GenerateJob& job = jobs[p * num_workers / num_prompts];
    const uint32_t first = occurrences[phase.prompts[p].id]++ * static_cast<uint32_t>(num_samples);
    job.prompts.push_back({phase.prompts[p].id, phase.prompts[p].tokens, ""});
    job.first_sample.push_back(first);
    for (size_t s = 0; s < num_samples; ++s) {
      slots[{phase.step, phase.prompts[p].id, first + static_cast<uint32_t>(s)}] = {p * num_samples + s, p};
    }
  }

  std::vector<std::optional<RolledSample>> results(num_prompts * num_samples);
  size_t finished = 0;
  std::mutex mutex;
  Status bad_sample;
  ACCORD_RETURN_IF_ERROR(for_all(num_workers, [&](size_t w) -> Status {
    GenerateJob& job = jobs[w];
    if (job.prompts.empty()) {
      return absl::OkStatus();
    }
    job.step = phase.step;
    job.num_samples = phase.num_samples;
    job.sampling = phase.sampling;
    job.keep = phase.keep;
    job.timeout = phase.timeout;
    return pools.rollout[w]->generate(job, [&](const SampleSummary& summary) {
      const std::lock_guard lock(mutex);
      const auto slot = slots.find(summary.key);
      if (slot == slots.end() || results[slot->second.first]) {
        bad_sample.Update(
            internal_error("rollout/{} sent a sample that was not asked for, or twice: prompt {}, sample {}",
                           w, summary.key.prompt_id, summary.key.sample_index));
        return;
      }
      if (summary.weight_version != weight_version) {
        bad_sample.Update(
            internal_error("rollout/{} drew a sample of prompt {} with weight version {}, not {}", w,
                           summary.key.prompt_id, summary.weight_version, weight_version));
        return;
      }
      results[slot->second.first] = RolledSample{summary, slot->second.second, w};
      ++finished;
      if (on_progress) {
        on_progress(finished);
      }
    });
  }));
  ACCORD_RETURN_IF_ERROR(bad_sample);

  std::vector<RolledSample> samples;
  samples.reserve(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i]) {
      return internal_error("sample {} of prompt {} never came back from rollout/{}", i % num_samples,
                            phase.prompts[i / num_samples].id, (i / num_samples) * num_workers / num_prompts);
    }
    samples.push_back(std::move(*results[i]));
  }
  return samples;
}

}  // namespace accord::controller
