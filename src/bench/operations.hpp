#pragma once
// Every operation of a layer by itself, in the order in which the model and the trainer launch them.
#include <cstdint>
#include <memory>

#include "bench/device_batch.hpp"
#include "bench/device_bench.hpp"
#include "bench/kernel_groups.hpp"
#include "bench/table.hpp"

namespace accord::bench {

struct Run {
  DeviceBench& bench;
  const ModelConfig& config;
  const Phase& phase;
  size_t format;  // of kFormats
};

// One layer's forward; the trainer's keeps what the backward needs.
void forward_operations(const Run& run, Table& table);
// Embedding, final norm, head, log-probability (training) or sampler (decode).
void head_operations(const Run& run, Table& table);
// Rows of one pass of the head: all of a decode step, a chunk of a training batch.
int64_t head_rows(const Run& run);

// One layer's backward. BF16: `high_precision`, the other formats the mode that is named for them.
void backward_operations(const Run& run, Table& table);
void head_backward_operations(const Run& run, Table& table);
// The optimizer's passes over the parameters of one layer, and the export.
void optimizer_operations(const Run& run, Table& table);

// How a step reaches the device: kernel by kernel, or captured once and launched with one call.
enum class Submission : uint8_t { kLaunches, kGraph };

// Products of few rows and of many, plain and of experts, and attention, at sizes of the model.
void product_tables(const KernelRun& run, DeviceBench& bench, const Shape& shape, int64_t context, bool tiny);
// Every quantizer and decoder at three sizes.
void format_table(const KernelRun& run, DeviceBench& bench, bool tiny);
// The digest of an arena's tensors.
void digest_table(const KernelRun& run, DeviceBench& bench, bool tiny);

// CudaModel over random weights of one format.
class WholeModel {
 public:
  explicit WholeModel(const Run& run);
  ~WholeModel();
  WholeModel(const WholeModel&) = delete;
  WholeModel& operator=(const WholeModel&) = delete;

  // Of layer_forward, the mean over the layers; with a tape in training.
  double layer_seconds(Submission how);
  // Of embedding, all layers, logits and draw of a decode step.
  double step_seconds(Submission how);
  // The same where the host sends a batch and waits for the tokens each time: by its clock.
  double waiting_step_seconds(Submission how);
  // What the graph of a step takes to capture, by the host's clock, and of the device's memory.
  struct Capture {
    double seconds = 0.0;
    int64_t bytes = 0;
  };
  Capture step_capture();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace accord::bench
