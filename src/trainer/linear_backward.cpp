#include "trainer/linear_backward.hpp"

#include <algorithm>
#include <utility>

#include "kernels/linear/linear_backward.hpp"

namespace accord::trainer {

using recipe::BackwardMode;

namespace {

constexpr int64_t kRowBlock = 128;  // of a job; a multiple of the stripe of column-wise copies
static_assert(kRowBlock % formats::kMxfp8Block == 0);

}  // namespace

Status check_backward(const WeightManifest& manifest, BackwardMode mode) {
  if (mode != BackwardMode::kQuantized) return absl::OkStatus();
  for (const WeightEntry& entry : manifest.entries) {
    if (entry.format == WeightFormat::kNVFP4) {
      return recipe_error(
          "{}: precision.backward: quantized is for MXFP8, but this weight is NVFP4 (use high_precision or "
          "dequantized)",
          entry.name);
    }
    if (entry.format == WeightFormat::kMXFP8 && entry.shape.front() % formats::kMxfp8Block != 0) {
      return recipe_error(
          "{}: {} rows are no multiple of {}, which precision.backward: quantized needs for its column-wise "
          "copies (use high_precision, or keep this weight BF16)",
          entry.name, entry.shape.front(), formats::kMxfp8Block);
    }
  }
  return absl::OkStatus();
}

LinearBackward::Operand LinearBackward::make(Form form, const Linear& linear, const float* in, int64_t rows,
                                             int64_t cols, formats::Element element) {
  const Operand operand{nullptr, floats_};
  for (int64_t begin = 0; begin < rows; begin += kRowBlock) {
    jobs_.push_back({form, element, linear.parameter, linear.weight, in, begin,
                     std::min(kRowBlock, rows - begin), cols, floats_});
  }
  floats_ += (rows * cols + 15) / 16 * 16;  // operands start on cache lines
  return operand;
}

LinearBackward::Product LinearBackward::plan(const Linear& linear, const float* x, int64_t rows) {
  const model::LinearWeight& w = *linear.weight;
  const auto shared_input = [&](Form form) {
    for (const SharedInput& made : shared_) {
      if (made.form == form && made.format == w.activation_format()) return made.operand;
    }
    shared_.push_back({form, w.activation_format(), make(form, linear, x, rows, w.k)});
    return shared_.back().operand;
  };
  Product p{linear.parameter, w.n, {linear.dy, 0}, {}, {linear.dy, 0}, {x, 0}};
  switch (w.format == WeightFormat::kBF16 ? BackwardMode::kHighPrecision : w_.backward.mode) {
    case BackwardMode::kHighPrecision:
      p.weight = make(Form::kOriginal, linear, nullptr, w.n, w.k);
      break;
    case BackwardMode::kDequantized:
      p.weight = make(Form::kDecoded, linear, nullptr, w.n, w.k);
      p.x = shared_input(Form::kActivation);
      break;
    case BackwardMode::kQuantized: {
      const formats::Element element =
          w_.backward.e5m2(linear.parameter) ? formats::Element::kE5M2 : formats::Element::kE4M3;
      p.weight = make(Form::kMasterColumns, linear, nullptr, w.n, w.k);
      p.dgrad_dy = make(Form::kRows, linear, linear.dy, rows, w.n, element);
      p.wgrad_dy = make(Form::kColumns, linear, linear.dy, rows, w.n, element);
      p.x = shared_input(Form::kColumns);
      break;
    }
  }
  return p;
}

void LinearBackward::add(std::initializer_list<Linear> linears, const float* x, int64_t rows, float* dx) {
  if (rows == 0) return;
  Group group{rows, linears.begin()->weight->k, dx, {}};
  shared_.clear();
  for (const Linear& linear : linears) group.products.push_back(plan(linear, x, rows));
  groups_.push_back(std::move(group));
}

void LinearBackward::run_job(const Job& job, float* out) {
  const int64_t at = job.row_begin * job.cols;
  const int64_t count = job.rows * job.cols;
  out += job.offset + at;
  if (job.form == Form::kDecoded) {
    kernels::decoded_weight(*job.weight, job.row_begin, job.rows, out);
    return;
  }
  if (job.form == Form::kOriginal) {
    w_.parameters.read_weight(job.parameter, at, count, out);
    return;
  }
  const Workspace::Lease scratch(w_, static_cast<size_t>(kernels::backward_operand_scratch(job.cols)));
  if (job.form == Form::kActivation) {
    kernels::decoded_activation(job.in + at, job.rows, job.cols, job.weight->activation_format(), out,
                                scratch.data());
    return;
  }
  const float* in = out;
  if (job.form == Form::kMasterColumns) {
    w_.parameters.read_weight(job.parameter, at, count, out);
  } else {
    in = job.in + at;
  }
  const formats::Axis axis = job.form == Form::kRows ? formats::Axis::kRow : formats::Axis::kCol;
  kernels::mxfp8_operand(in, job.rows, job.cols, axis, job.element, out, scratch.data());
}

Status LinearBackward::run() {
  operands_.ensure(static_cast<size_t>(floats_) * sizeof(float));
  float* made = operands_.as<float>();
  w_.pool.parallel_for(static_cast<int64_t>(jobs_.size()),
                       [&](int64_t i) { run_job(jobs_[static_cast<size_t>(i)], made); });
  const auto at = [&](const Operand& o) { return o.given != nullptr ? o.given : made + o.offset; };
  for (const Group& group : groups_) {
    std::vector<Products::Term> terms;
    for (const Product& p : group.products) {
      terms.push_back({at(p.dgrad_dy), at(p.weight), p.out});
      products_.add_gradient(at(p.wgrad_dy), at(p.x), group.rows, p.out, group.in,
                             w_.parameters.gradient(p.parameter).data());
    }
    products_.add_rows(std::move(terms), group.rows, group.in, group.dx);
  }
  groups_.clear();
  jobs_.clear();
  floats_ = 0;
  return products_.run(w_.pool);
}

}  // namespace accord::trainer
