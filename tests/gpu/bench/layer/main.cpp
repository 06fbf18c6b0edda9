// Where the time of a layer goes on the device: every operation by itself beside its ceiling, and the whole
// layer beside their sum, as tables in Markdown. --tiny: sizes at which it runs anywhere; --decode: decode
// steps only.
#include <cstdio>
#include <cstring>
#include <string>

#include "operations.hpp"

using namespace layer_bench;
using gpu_test::Gpu;

namespace {

std::string total(double seconds, double ideal) {
  char text[80];
  std::snprintf(text, sizeof(text), "**%.0f µs**, %.0f %%", seconds * 1e6, 100.0 * ideal / seconds);
  return text;
}

std::string beside(double seconds, double sum) {
  char text[80];
  std::snprintf(text, sizeof(text), "**%.0f µs**, %.0f %% of the sum", seconds * 1e6, 100.0 * seconds / sum);
  return text;
}

std::string title(const Shape& shape, const char* what, const Phase& phase) {
  char text[160];
  if (phase.decode) {
    std::snprintf(text, sizeof(text), "%s, %s: %lld rows at context %lld", shape.name.c_str(), what,
                  static_cast<long long>(phase.rows), static_cast<long long>(phase.length));
  } else {
    std::snprintf(text, sizeof(text), "%s, %s: %lld rows in sequences of %lld", shape.name.c_str(), what,
                  static_cast<long long>(phase.rows), static_cast<long long>(phase.length));
  }
  return text;
}

std::string head_name(const Run& run) {
  return "sum of embedding and head, " + std::to_string(head_rows(run)) + " rows";
}

void forward(Bench& bench, const Shape& shape, const Phase& phase) {
  Table table(bench, title(shape, phase.decode ? "decode" : "forward with a tape", phase));
  for (size_t format = 0; format < kFormats.size(); ++format) {
    const Run run{bench, shape.config, phase, format};
    forward_operations(run, table);
    const double layer = table.sum(format);
    const double ideal = table.ideal(format);
    WholeModel whole(run);
    table.add_text(format, "sum of the layer", total(layer, ideal));
    table.add_text(format, "layer_forward", beside(whole.layer_seconds(Submission::kLaunches), layer));
    if (phase.decode) {
      table.add_text(format, "layer_forward, from a graph",
                     beside(whole.layer_seconds(Submission::kGraph), layer));
    }
    head_operations(run, table);
    const double head = table.sum(format) - layer;
    const double ideal_head = table.ideal(format) - ideal;
    table.add_text(format, head_name(run), total(head, ideal_head));
    const auto layers = static_cast<double>(shape.config.num_layers);
    if (!phase.decode || layers < 2) continue;
    const double sum = layers * layer + head;
    table.add_text(format, "sum of a step of " + std::to_string(shape.config.num_layers) + " layers",
                   total(sum, layers * ideal + ideal_head));
    for (const Submission how : {Submission::kLaunches, Submission::kGraph}) {
      const std::string from = how == Submission::kGraph ? ", from a graph" : "";
      table.add_text(format, "the step, back to back" + from, beside(whole.step_seconds(how), sum));
      table.add_text(format, "the step, the host waiting for its tokens" + from,
                     beside(whole.waiting_step_seconds(how), sum));
    }
    const WholeModel::Capture capture = whole.step_capture();
    char text[80];
    std::snprintf(text, sizeof(text), "%.1f ms, %.1f MB", capture.seconds * 1e3,
                  static_cast<double>(capture.bytes) * 1e-6);
    table.add_text(format, "capturing the step", text);
  }
  const std::string columns[] = {"BF16", "MXFP8", "NVFP4"};
  table.print(columns);
}

void backward(Bench& bench, const Shape& shape, const Phase& phase) {
  Table table(bench, title(shape, "backward", phase));
  for (size_t format = 0; format < kFormats.size(); ++format) {
    const Run run{bench, shape.config, phase, format};
    backward_operations(run, table);
    const double layer = table.sum(format);
    const double ideal = table.ideal(format);
    table.add_text(format, "sum of the layer", total(layer, ideal));
    head_backward_operations(run, table);
    table.add_text(format, head_name(run), total(table.sum(format) - layer, table.ideal(format) - ideal));
  }
  const std::string columns[] = {"BF16, or `high_precision`", "MXFP8, `quantized`", "NVFP4, `dequantized`"};
  table.print(columns);
}

void optimizer(Bench& bench, const Shape& shape) {
  Table table(bench, shape.name + ", optimizer: the matrices of one layer");
  for (size_t format = 0; format < kFormats.size(); ++format) {
    optimizer_operations({bench, shape.config, {}, format}, table);
  }
  const std::string columns[] = {"BF16", "MXFP8", "NVFP4"};
  table.print(columns);
}

}  // namespace

int main(int argc, char** argv) {
  bool tiny = false;
  bool decode = false;
  for (int i = 1; i < argc; ++i) {
    bool& option = std::strcmp(argv[i], "--tiny") == 0 ? tiny : decode;
    if (&option == &decode && std::strcmp(argv[i], "--decode") != 0) {
      std::fprintf(stderr, "usage: bench_gpu_layer [--tiny] [--decode]\n");
      return 2;
    }
    option = true;
  }
  const auto gpu = Gpu::open();
  if (!gpu) return 0;
  Bench bench(*gpu, int64_t{1} << (tiny ? 22 : 29));
  bench.measure_ceilings(tiny ? 256 : 8192);
  for (const Shape& shape : all_shapes(tiny)) {
    forward(bench, shape, {true, shape.decode_rows, shape.context});
    if (decode) continue;
    const Phase training{false, shape.train_rows, shape.length};
    forward(bench, shape, training);
    backward(bench, shape, training);
    optimizer(bench, shape);
  }
  return 0;
}
