#pragma once
// The MLPs of a MoE layer's experts on rows sorted by expert. Not for other rooms.
#include <cstdint>
#include <span>

#include "model/impl.hpp"

namespace accord::model {

// Rows sorted by expert: R of them, made from N inputs.
struct ExpertRows {
  std::span<const int32_t> input_of;  // [R] the input of each row
  std::span<const int32_t> offsets;   // first row of each expert, and the end
  MatrixView gate, up, act, down;     // [R,...] filled by run()
};

class ExpertMlps {
 public:
  // `experts`: those of this place.
  ExpertMlps(Model::Impl& model, std::span<const MlpWeights> experts);

  void set_inputs(MatrixView inputs_NH);
  // Quantizes inputs [begin, end) for the gates and ups; every input before run().
  void make_operands(int64_t begin, int64_t end, kernels::Workspace& scratch);
  void run(const ExpertRows& rows);

 private:
  void run_task(const ExpertRows& rows, const ExpertTask& task);
  kernels::Operand gather_operand(const ExpertRows& rows, const ExpertTask& task,
                                  const kernels::ActivationFormat& format, kernels::Workspace& scratch);

  Model::Impl& m_;
  std::span<const MlpWeights> experts_;
  bool one_format_ = false;  // of all gates and ups: their operands are shared
  MatrixView inputs_;
};

}  // namespace accord::model
