#include "trainer/parameters.hpp"

#include <cstring>

namespace accord::trainer {

namespace {
constexpr int64_t kAlignElements = static_cast<int64_t>(Buffer::kAlignment / sizeof(float));
}

StatusOr<Parameters> Parameters::create(const ModelConfig& config, std::span<const std::string> no_decay) {
  Parameters p;
  p.specs_ = parameter_specs(config);
  for (const ParamSpec& spec : p.specs_) {
    p.by_name_.emplace(spec.name, static_cast<int64_t>(p.offsets_.size()));
    p.offsets_.push_back(p.total_);
    p.decays_.push_back(spec.shape.size() > 1);  // norms and biases are vectors
    p.total_ += (spec.numel() + kAlignElements - 1) / kAlignElements * kAlignElements;
  }
  for (const std::string& name : no_decay) {
    const int64_t index = p.index(name);
    if (index < 0)
      return data_error("trainer: no parameter is named {} (list of weights without decay)", name);
    p.decays_[static_cast<size_t>(index)] = false;
  }
  for (Buffer* buffer : {&p.masters_, &p.gradients_, &p.exp_avg_, &p.exp_avg_sq_}) {
    buffer->ensure(static_cast<size_t>(p.total_) * sizeof(float));
    std::memset(buffer->data(), 0, static_cast<size_t>(p.total_) * sizeof(float));
  }
  return p;
}

int64_t Parameters::index(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? -1 : it->second;
}

std::span<float> Parameters::view(const Buffer& buffer, int64_t index) const {
  const size_t i = static_cast<size_t>(index);
  return {buffer.as<float>() + offsets_[i], static_cast<size_t>(specs_[i].numel())};
}

void Parameters::clear_gradients() {
  std::memset(gradients_.data(), 0, static_cast<size_t>(total_) * sizeof(float));
}

void Parameters::clear_moments() {
  for (Buffer* buffer : {&exp_avg_, &exp_avg_sq_}) {
    std::memset(buffer->data(), 0, static_cast<size_t>(total_) * sizeof(float));
  }
}

}  // namespace accord::trainer
