#include "rpc/convert.hpp"

namespace accord::rpc {

v1::SampleKeyMessage to_proto(const SampleKey& key) {
  v1::SampleKeyMessage message;
  message.set_step(key.step);
  message.set_prompt_id(key.prompt_id);
  message.set_sample_index(key.sample_index);
  return message;
}

SampleKey from_proto(const v1::SampleKeyMessage& m) { return {m.step(), m.prompt_id(), m.sample_index()}; }

v1::GenerateRequest to_proto(const controller::GenerateJob& job) {
  v1::GenerateRequest message;
  message.set_step(job.step);
  for (size_t i = 0; i < job.prompts.size(); ++i) {
    v1::PromptMessage* prompt = message.add_prompts();
    prompt->set_id(job.prompts[i].id);
    prompt->mutable_tokens()->Add(job.prompts[i].tokens.begin(), job.prompts[i].tokens.end());
    prompt->set_first_sample_index(job.first_sample[i]);
  }
  message.set_num_samples(job.num_samples);
  v1::SamplingMessage* sampling = message.mutable_sampling();
  sampling->set_temperature(job.sampling.temperature);
  sampling->set_top_p(job.sampling.top_p);
  sampling->set_top_k(job.sampling.top_k);
  sampling->set_max_new_tokens(job.sampling.max_new_tokens);
  for (const std::string& stop : job.sampling.stop_strings) {
    sampling->add_stop(stop);
  }
  sampling->mutable_stop_tokens()->Add(job.sampling.stop_tokens.begin(), job.sampling.stop_tokens.end());
  message.set_keep(job.keep);
  return message;
}

controller::GenerateJob from_proto(const v1::GenerateRequest& m) {
  controller::GenerateJob job;
  job.step = m.step();
  for (const v1::PromptMessage& prompt : m.prompts()) {
    job.prompts.push_back({prompt.id(), {prompt.tokens().begin(), prompt.tokens().end()}, ""});
    job.first_sample.push_back(prompt.first_sample_index());
  }
  job.num_samples = m.num_samples();
  job.sampling.temperature = m.sampling().temperature();
  job.sampling.top_p = m.sampling().top_p();
  job.sampling.top_k = m.sampling().top_k();
  job.sampling.max_new_tokens = m.sampling().max_new_tokens();
  job.sampling.stop_strings.assign(m.sampling().stop().begin(), m.sampling().stop().end());
  job.sampling.stop_tokens.assign(m.sampling().stop_tokens().begin(), m.sampling().stop_tokens().end());
  job.keep = m.keep();
  return job;
}

v1::SampleSummary to_proto(const controller::SampleSummary& s) {
  v1::SampleSummary message;
  *message.mutable_key() = to_proto(s.key);
  message.set_weight_version(s.weight_version);
  message.set_prompt_length(s.prompt_length);
  message.set_response_length(s.response_length);
  message.set_truncated(s.truncated);
  message.set_response_text(s.response_text);
  return message;
}

controller::SampleSummary from_proto(const v1::SampleSummary& m) {
  return {from_proto(m.key()), m.weight_version(), m.prompt_length(),
          m.response_length(), m.truncated(),      m.response_text()};
}

v1::JoinRequest to_proto(const controller::GroupJob& job) {
  v1::JoinRequest message;
  message.set_role(job.role == controller::GroupRole::kWeights    ? v1::GROUP_ROLE_WEIGHTS
                   : job.role == controller::GroupRole::kTrainers ? v1::GROUP_ROLE_TRAINERS
                                                                  : v1::GROUP_ROLE_EXPERTS);
  message.set_group(job.group);
  message.set_rank(job.rank);
  message.set_size(job.size);
  message.set_timeout_ms(job.timeout.count());
  return message;
}

StatusOr<controller::GroupJob> from_proto(const v1::JoinRequest& m) {
  controller::GroupJob job;
  switch (m.role()) {
    case v1::GROUP_ROLE_WEIGHTS:
      job.role = controller::GroupRole::kWeights;
      break;
    case v1::GROUP_ROLE_TRAINERS:
      job.role = controller::GroupRole::kTrainers;
      break;
    case v1::GROUP_ROLE_EXPERTS:
      job.role = controller::GroupRole::kExperts;
      break;
    default:
      return internal_error("group '{}' has no role that this worker knows ({})", m.group(),
                            static_cast<int>(m.role()));
  }
  job.group = m.group();
  job.rank = m.rank();
  job.size = m.size();
  job.timeout = controller::Millis(m.timeout_ms());
  return job;
}

v1::TrainRequest to_proto(const controller::TrainJob& job) {
  v1::TrainRequest message;
  message.set_step(job.step);
  message.set_weight_version(job.weight_version);
  for (const controller::TrainSampleRef& ref : job.samples) {
    v1::TrainSampleMessage* sample = message.add_samples();
    *sample->mutable_key() = to_proto(ref.key);
    sample->set_holder(ref.holder);
    sample->set_num_tokens(ref.num_tokens);
    sample->set_advantage(ref.advantage);
    sample->set_response_length(ref.response_length);
    sample->set_rank(ref.rank);
  }
  message.set_timeout_ms(job.timeout.count());
  return message;
}

controller::TrainJob from_proto(const v1::TrainRequest& m) {
  controller::TrainJob job;
  job.step = m.step();
  job.weight_version = m.weight_version();
  for (const v1::TrainSampleMessage& sample : m.samples()) {
    job.samples.push_back({from_proto(sample.key()), sample.holder(), sample.num_tokens(),
                           sample.response_length(), sample.advantage(), sample.rank()});
  }
  job.timeout = controller::Millis(m.timeout_ms());
  return job;
}

v1::SftRequest to_proto(const controller::SftJob& job) {
  v1::SftRequest message;
  message.set_step(job.step);
  for (const controller::SftSample& sample : job.samples) {
    v1::SftSampleMessage* out = message.add_samples();
    out->mutable_tokens()->Add(sample.tokens.begin(), sample.tokens.end());
    out->set_prompt_length(sample.prompt_length);
  }
  message.set_timeout_ms(job.timeout.count());
  return message;
}

controller::SftJob from_proto(const v1::SftRequest& m) {
  controller::SftJob job;
  job.step = m.step();
  for (const v1::SftSampleMessage& sample : m.samples()) {
    job.samples.push_back({{sample.tokens().begin(), sample.tokens().end()}, sample.prompt_length()});
  }
  job.timeout = controller::Millis(m.timeout_ms());
  return job;
}

v1::TrainReply to_proto(const Metrics& metrics) {
  v1::TrainReply message;
  for (const auto& [name, value] : metrics) {
    v1::MetricMessage* metric = message.add_metrics();
    metric->set_name(name);
    metric->set_value(value);
  }
  return message;
}

Metrics from_proto(const v1::TrainReply& m) {
  Metrics metrics;
  for (const v1::MetricMessage& metric : m.metrics()) {
    metrics[metric.name()] = metric.value();
  }
  return metrics;
}

v1::TensorRecord to_proto(const controller::TensorRecord& r) {
  v1::TensorRecord message;
  message.set_name(r.name);
  message.set_digest(r.digest);
  message.set_amax(r.amax);
  message.set_saturated(r.saturated);
  message.set_flushed(r.flushed);
  return message;
}

controller::TensorRecord from_proto(const v1::TensorRecord& m) {
  return {m.name(), m.digest(), m.amax(), m.saturated(), m.flushed()};
}

v1::StepMetrics to_proto(const controller::StepRecord& record) {
  v1::StepMetrics message;
  message.set_step(record.step);
  for (const auto& [name, value] : record.metrics) {
    (*message.mutable_metrics())[name] = value;
  }
  return message;
}

v1::GetStatusReply to_proto(const controller::RunSnapshot& s) {
  v1::GetStatusReply message;
  message.set_run(s.run);
  message.set_run_id(s.run_id);
  message.set_epoch(s.epoch);
  message.set_directory(s.directory);
  message.set_phase(s.phase);
  message.set_step(s.step);
  message.set_steps(s.steps);
  message.set_weight_version(s.weight_version);
  for (const controller::WorkerState& w : s.workers) {
    v1::WorkerStatus* worker = message.add_workers();
    worker->set_name(w.name);
    worker->set_address(w.address);
    worker->set_pid(w.pid);
    worker->set_state(w.state);
    worker->set_weight_version(w.weight_version);
  }
  for (const std::string& warning : s.warnings) {
    message.add_warnings(warning);
  }
  if (s.last) {
    *message.mutable_last() = to_proto(*s.last);
  }
  return message;
}

}  // namespace accord::rpc
