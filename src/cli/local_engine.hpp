#pragma once
// What `generate` and `eval` share: a checkpoint with its tokenizer, and an engine over it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "cli/command.hpp"
#include "controller/device_weights.hpp"
#include "controller/local_model.hpp"
#include "controller/served_model.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace accord::cli {

struct LocalEngineArguments {
  std::string checkpoint;
  std::string dtype;  // empty: the recipe's, or bfloat16
  std::string recipe;
  int threads = 0;
  std::string device = "cpu";
  uint64_t seed = 0;
  float temperature = 0.0F;
  float top_p = 1.0F;
  int32_t top_k = -1;
  int32_t max_tokens = 0;
  std::vector<std::string> stop;
  text::ChatOptions template_options;
  bool chat = false;  // neither: where the model has a chat template
  bool no_chat = false;
};

// Declares the options above; the fields' values are the defaults that --help shows.
void add_local_engine_options(CLI::App& command, LocalEngineArguments& arguments);

// How much runs at once.
struct BatchSize {
  int32_t max_rows = 1;
  int64_t longest_sequence = 1;
};

class LocalEngine {
 public:
  // `tokenizer_required`: whether a checkpoint without a tokenizer is an error. One that is there and cannot
  // be read always is.
  static StatusOr<std::unique_ptr<LocalEngine>> load(const LocalEngineArguments& arguments,
                                                     bool tokenizer_required);

  const ModelConfig& config() const { return local_->config(); }
  const text::Tokenizer* tokenizer() const { return tokenizer_.get(); }  // nullptr: none
  const text::ChatTemplate& chat() const { return chat_; }
  SamplingParams sampling() const;
  // Text of response tokens, without special tokens.
  std::string decode(std::span<const int32_t> ids) const { return tokenizer_->decode(ids, true); }

  // Must not outlive this object.
  StatusOr<std::unique_ptr<controller::ServedModel>> serve(const BatchSize& size);

 private:
  LocalEngine() = default;
  Status load_text(bool tokenizer_required);
  void find_stop_tokens();

  LocalEngineArguments arguments_;
  Device device_;
  std::unique_ptr<controller::LocalModel> local_;
  std::unique_ptr<controller::DeviceWeights> weights_;  // of a CUDA device
  std::unique_ptr<text::Tokenizer> tokenizer_;
  text::ChatTemplate chat_{text::ChatTemplate::Kind::kNone};
  std::vector<int32_t> stop_tokens_;
};

}  // namespace accord::cli
