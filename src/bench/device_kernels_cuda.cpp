// Every kernel on a device, in four groups of tables: the operations of a layer by themselves beside the
// whole layer, products of few and of many rows, quantizers, and what a weight update computes.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "bench/kernel_groups.hpp"
#include "bench/operations.hpp"

namespace accord::bench {
namespace {

constexpr int64_t kElements = int64_t{1} << 29;
constexpr int64_t kTinyElements = int64_t{1} << 22;
constexpr int64_t kProduct = 8192;
constexpr int64_t kTinyProduct = 256;
constexpr int64_t kTinyHidden = 256;  // up to here a shape is one that runs anywhere
constexpr int64_t kPage = 16;

// The rows that a shape is measured with.
struct Rows {
  Phase decode, training;
};

bool is_tiny(const Shape& shape) { return shape.config.hidden_size <= kTinyHidden; }

Rows rows_of(const Shape& shape) {
  if (is_tiny(shape)) {
    const int64_t context = shape.config.num_experts > 0 ? 528 : 32;  // with and without splits
    return {{true, 4, context}, {false, 64, 32}};
  }
  const bool small = shape.config.hidden_size < 1024;
  const int64_t most = shape.config.max_position_embeddings / kPage * kPage;
  const int64_t length = std::min<int64_t>(small ? 512 : 2048, most);
  const int64_t sequences = std::max<int64_t>(1, 8192 / length);
  return {{true, 128, length}, {false, sequences * length, length}};
}

std::string title(const Shape& shape, const char* what, const Phase& phase) {
  return fmt::format("{}, {}: {} rows {} {}", shape.name, what, phase.rows,
                     phase.decode ? "at context" : "in sequences of", phase.length);
}

std::string head_name(const Run& run) {
  return fmt::format("sum of embedding and head, {} rows", head_rows(run));
}

class LayerTables {
 public:
  LayerTables(const KernelRun& run, DeviceBench& bench, const Shape& shape)
      : run_(run),
        bench_(bench),
        shape_(shape),
        // Layers of a mixture of experts are large, and all alike.
        config_(shape.config.num_experts > 0 ? with_layers(shape.config, 1) : shape.config) {}

  void forward(const Phase& phase) const {
    Table table(bench_.ceilings(), title(shape_, phase.decode ? "decode" : "forward with a tape", phase),
                format_columns(), run_.options.op);
    for (size_t format = 0; format < kFormats.size(); ++format) {
      const Run run{bench_, config_, phase, format};
      forward_operations(run, table);
      const double layer = table.sum(format);
      const double ideal = table.ideal(format);
      std::unique_ptr<WholeModel> whole;
      if (table.complete()) whole = std::make_unique<WholeModel>(run);
      table.add_total(format, "sum of the layer", layer, ideal);
      if (whole != nullptr) {
        table.add_beside(format, "layer_forward", whole->layer_seconds(Submission::kLaunches), layer);
        if (phase.decode) {
          table.add_beside(format, "layer_forward, from a graph", whole->layer_seconds(Submission::kGraph),
                           layer);
        }
      }
      head_operations(run, table);
      const double head = table.sum(format) - layer;
      table.add_total(format, head_name(run), head, table.ideal(format) - ideal);
      if (whole != nullptr && phase.decode && config_.num_layers > 1) {
        step(run, table, *whole, layer, ideal, head);
      }
    }
    run_.finish(std::move(table));
  }

  void backward(const Phase& phase) const {
    Table table(bench_.ceilings(), title(shape_, "backward", phase),
                {"BF16, or `high_precision`", "MXFP8, `quantized`", "NVFP4, `dequantized`"}, run_.options.op);
    for (size_t format = 0; format < kFormats.size(); ++format) {
      const Run run{bench_, config_, phase, format};
      backward_operations(run, table);
      const double layer = table.sum(format);
      const double ideal = table.ideal(format);
      table.add_total(format, "sum of the layer", layer, ideal);
      head_backward_operations(run, table);
      table.add_total(format, head_name(run), table.sum(format) - layer, table.ideal(format) - ideal);
    }
    run_.finish(std::move(table));
  }

  void optimizer() const {
    Table table(bench_.ceilings(), shape_.name + ", optimizer: the matrices of one layer", format_columns(),
                run_.options.op);
    for (size_t format = 0; format < kFormats.size(); ++format) {
      optimizer_operations({bench_, config_, {}, format}, table);
    }
    run_.finish(std::move(table));
  }

 private:
  // A step of all layers beside the model's own.
  void step(const Run& run, Table& table, WholeModel& whole, double layer, double ideal, double head) const {
    const size_t format = run.format;
    const auto layers = static_cast<double>(config_.num_layers);
    const double sum = layers * layer + head;
    table.add_total(format, fmt::format("sum of a step of {} layers", config_.num_layers), sum,
                    layers * ideal + (table.ideal(format) - ideal));
    for (const Submission how : {Submission::kLaunches, Submission::kGraph}) {
      const std::string from = how == Submission::kGraph ? ", from a graph" : "";
      table.add_beside(format, "the step, back to back" + from, whole.step_seconds(how), sum);
      table.add_beside(format, "the step, the host waiting for its tokens" + from,
                       whole.waiting_step_seconds(how), sum);
    }
    const WholeModel::Capture capture = whole.step_capture();
    table.add_text(format, "capturing the step",
                   fmt::format("{}, {}", microseconds_text(capture.seconds),
                               bytes_text(static_cast<double>(capture.bytes))));
  }

  const KernelRun& run_;
  DeviceBench& bench_;
  const Shape& shape_;
  const ModelConfig config_;
};

}  // namespace

void run_device_kernels(const KernelRun& run) {
  const bool tiny = std::all_of(run.shapes.begin(), run.shapes.end(), is_tiny);
  const Gpu gpu(run.options.device);
  DeviceBench bench(gpu, tiny ? kTinyElements : kElements);
  bench.measure_ceilings(tiny ? kTinyProduct : kProduct);
  run.report.ceilings = bench.ceilings();
  if (cuda_is_emulated()) run.report.note = "the device is emulated: times are the host's and mean nothing";
  run.print(fmt::format("{}: {}\n", run.report.device, to_text(bench.ceilings())));
  if (!run.report.note.empty()) run.print(run.report.note + "\n");
  for (const Shape& shape : run.shapes) {
    const Rows rows = rows_of(shape);
    const LayerTables tables(run, bench, shape);
    tables.forward(rows.decode);
    if (run.options.decode) continue;
    tables.forward(rows.training);
    tables.backward(rows.training);
    tables.optimizer();
    product_tables(run, bench, shape, rows.decode.length, is_tiny(shape));
  }
  if (run.options.decode) return;
  format_table(run, bench, tiny);
  digest_table(run, bench, tiny);
}

}  // namespace accord::bench
