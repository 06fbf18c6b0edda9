#include "model/expert_mlps.hpp"

#include <algorithm>

#include "kernels/gemm/gemm.hpp"
#include "kernels/swiglu/swiglu.hpp"

namespace accord::model {

using kernels::Operand;
using kernels::WorkspacePool;

ExpertMlps::ExpertMlps(Model::Impl& model, std::span<const MlpWeights> experts)
    : m_(model), experts_(experts) {
  one_format_ = std::all_of(experts.begin(), experts.end(), [&](const MlpWeights& e) {
    const kernels::ActivationFormat format = experts[0].gate.activation_format();
    return e.gate.activation_format() == format && e.up.activation_format() == format;
  });
}

void ExpertMlps::set_inputs(MatrixView inputs_NH) {
  inputs_ = inputs_NH;
  if (one_format_) {
    m_.expert_operand.matrix(Dtype::kF32, inputs_.rows, kernels::padded_k(inputs_.cols));
    m_.expert_outer.matrix(Dtype::kF32, inputs_.rows, 1);
  }
}

void ExpertMlps::make_operands(int64_t begin, int64_t end, kernels::Workspace& scratch) {
  if (!one_format_) {
    return;
  }
  const int64_t width = kernels::padded_k(inputs_.cols);
  kernels::make_operand_values(
      inputs_.slice_rows(begin, end - begin), experts_[0].gate.activation_format(),
      {m_.expert_operand.as<float>() + begin * width, m_.expert_outer.as<float>() + begin}, scratch);
}

void ExpertMlps::run(const ExpertRows& rows) {
  const MlpWeights& mlp = experts_[0];
  const auto total = static_cast<int64_t>(rows.input_of.size());
  const int64_t work = total * (mlp.gate.n * mlp.gate.k + mlp.up.n * mlp.up.k + mlp.down.n * mlp.down.k);
  const bool parallel = m_.pool.num_threads() > 1 && work >= kParallelWork;
  m_.expert_tasks.clear();
  for (int32_t e = 0; e < static_cast<int32_t>(experts_.size()); ++e) {
    const int32_t last = rows.offsets[static_cast<size_t>(e) + 1];
    for (int32_t row = rows.offsets[static_cast<size_t>(e)]; row < last;) {
      const int32_t stop = std::min<int32_t>(last, row + static_cast<int32_t>(kMaxChunkRows));
      m_.expert_tasks.push_back({e, row, stop});
      row = stop;
    }
  }
  const auto task = [&](int64_t i) { run_task(rows, m_.expert_tasks[static_cast<size_t>(i)]); };
  const auto count = static_cast<int64_t>(m_.expert_tasks.size());
  if (parallel) {
    m_.pool.parallel_for(count, std::ref(task));
  } else {
    for (int64_t i = 0; i < count; ++i) task(i);
  }
}

void ExpertMlps::run_task(const ExpertRows& rows, const ExpertTask& task) {
  const formats::IeeeMode ieee;
  const int64_t n = task.end - task.begin;
  const MlpWeights& mlp = experts_[static_cast<size_t>(task.expert)];
  const MatrixView gate = rows.gate.slice_rows(task.begin, n);
  const MatrixView up = rows.up.slice_rows(task.begin, n);
  const MatrixView act = rows.act.slice_rows(task.begin, n);
  const WorkspacePool::Lease lease = m_.scratch.acquire();
  Operand x = gather_operand(rows, task, mlp.gate.activation_format(), *lease);
  kernels::linear_columns(x, mlp.gate, gate, 0, mlp.gate.n, *lease);
  if (mlp.up.activation_format() != mlp.gate.activation_format()) {
    x = gather_operand(rows, task, mlp.up.activation_format(), *lease);
  }
  kernels::linear_columns(x, mlp.up, up, 0, mlp.up.n, *lease);
  kernels::swiglu(gate, up, act);
  kernels::linear_columns(kernels::make_operand(act, mlp.down.activation_format(), *lease), mlp.down,
                          rows.down.slice_rows(task.begin, n), 0, mlp.down.n, *lease);
}

// Inputs of the task's rows: pointers into the shared operand, or values made here where the layer's experts
// differ in format.
Operand ExpertMlps::gather_operand(const ExpertRows& rows, const ExpertTask& task,
                                   const kernels::ActivationFormat& format, kernels::Workspace& scratch) {
  const int64_t n = task.end - task.begin;
  const int64_t width = kernels::padded_k(inputs_.cols);
  scratch.operand_rows.ensure(static_cast<size_t>(n) * sizeof(float*));
  scratch.operand_outer.ensure(static_cast<size_t>(n) * sizeof(float));
  auto* pointers = scratch.operand_rows.as<const float*>();
  auto* outer = scratch.operand_outer.as<float>();
  if (!one_format_) {
    scratch.operand.ensure(static_cast<size_t>(n * width) * sizeof(float));
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t input = rows.input_of[static_cast<size_t>(task.begin + i)];
    if (one_format_) {
      pointers[i] = m_.expert_operand.as<float>() + input * width;
      outer[i] = m_.expert_outer.as<float>()[input];
    } else {
      float* values = scratch.operand.as<float>() + i * width;
      kernels::make_operand_values(inputs_.slice_rows(input, 1), format, {values, outer + i}, scratch);
      pointers[i] = values;
    }
  }
  return {format, n, inputs_.cols, pointers, outer};
}

}  // namespace accord::model
