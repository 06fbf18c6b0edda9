#pragma once
// Masters and moments in a checkpoint: one file per trainer rank, each with the tensors that the rank owns,
//   training_state-00001-of-00004.safetensors   fp32 master.<name>, exp_avg.<name>, exp_avg_sq.<name>;
//                                               metadata optimizer_steps
// and the weights as a Hugging Face directory, written by rank 0.
#include <string>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "checkpoint/hf_config.hpp"
#include "trainer/trainer.hpp"

namespace accord::controller {

std::string training_state_file(int32_t rank, int32_t size);

Status save_training_state(const std::string& directory, int32_t rank, int32_t size,
                           trainer::Trainer& trainer);

// Whatever number of ranks wrote the files: tensors are found by name. All files are checked before the
// trainer changes. Errors (kBadData): a missing, foreign or misshapen file or tensor, by name.
Status load_training_state(const std::string& directory, trainer::Trainer& trainer);

// bf16 of the masters. With a `group` every rank of it calls this: owners hand their tensors to rank 0, which
// writes; null: this rank owns everything. `tokenizer_dir`: where the tokenizer's files are copied from.
Status save_hf_weights(const std::string& directory, const checkpoint::HfConfig& config,
                       const std::string& tokenizer_dir, trainer::Trainer& trainer, Communicator* group,
                       Deadline deadline);

}  // namespace accord::controller
