#pragma once
// parameters.hpp on a CUDA device: flat fp32 arrays of masters, moments and gradients, and where bf16(master)
// of each weight lies. Everything is in the order of one stream; copies to host memory wait.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/export_counts.hpp"
#include "device/device.hpp"
#include "device/device_buffer.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"
#include "device/thread_pool.hpp"
#include "kernels/adamw/adamw.hpp"
#include "recipe/recipe.hpp"
#include "trainer/backend.hpp"
#include "trainer/device_exchange.hpp"
#include "trainer/parameter_table.hpp"

namespace accord::trainer {

class CudaParameters : public ParameterTable {
 public:
  // Zeros. `device` and `stream` are borrowed. Errors: Memory::allocate's.
  static StatusOr<std::unique_ptr<CudaParameters>> create(ParameterTable table, const Device& device,
                                                          const Stream& stream);

  // Device memory; null where this rank does not own (for gradients: hold) the tensor.
  float* values(StateKind kind, int64_t index) const;
  float* gradient(int64_t index) const { return values(StateKind::kGradient, index); }
  const float* master(int64_t index) const { return values(StateKind::kMaster, index); }

  Status read(StateKind kind, int64_t index, std::span<float> out) const;
  Status write(StateKind kind, int64_t index, std::span<const float> in);
  Status clear_gradients();
  Status clear_moments();

  // Parameters::bind; the arena is the device's, and update() writes into it.
  Status bind(const WeightManifest& manifest, void* arena, bool originals);
  // Trainer::exported; waits for the stream.
  StatusOr<std::span<const ExportCounts>> exported() const;
  // bf16(master) where it lies as such: BF16 weights in the arena, and copies of weights that this rank does
  // not own. Null: to be made from the master.
  const BF16* original(int64_t index) const { return originals_of_[static_cast<size_t>(index)]; }

  // backend.hpp.
  Status reduce_gradients(Communicator& group, ThreadPool& pool, Deadline deadline);
  Status share_originals(Communicator& group, ThreadPool& pool, Deadline deadline);
  StatusOr<double> gradient_squares();
  StatusOr<int64_t> first_non_finite_gradient();
  Status update(const recipe::OptimizerPart& optimizer, double norm, double lr, int64_t steps);

  void add_memory(TrainerMemory& memory) const;

 private:
  // Where a tensor that this rank owns lies in the arena: what the update writes of it.
  struct Export {
    WeightFormat format = WeightFormat::kBF16;
    std::byte* data = nullptr;
    uint8_t* scales = nullptr;
  };

  CudaParameters(ParameterTable table, const Device& device, const Stream& stream);
  float* owned_gradients() const;
  int64_t num_owned() const;  // elements, with padding
  Status update_tensor(int64_t index, const kernels::AdamwFactors& factors);

  const Device& device_;
  const Stream& stream_;
  DeviceBuffer masters_, gradients_, exp_avg_, exp_avg_sq_;
  DeviceExchange exchange_;  // where the ranks' devices are connected
  DeviceBuffer originals_;
  ShardLayout original_layout_;
  std::vector<const BF16*> originals_of_;  // per parameter
  std::vector<Export> exports_;            // per parameter, once an arena is bound
  DeviceBuffer counts_;                    // ExportCounts per parameter
  Memory counts_host_;                     // their copy
  bool exported_ = false;                  // the arena holds what the last update wrote
  DeviceBuffer sums_;                      // of gradient_squares: the result, then scratch
  float gradient_scale_ = 1.0F;  // of the last update's clipping, which the stored gradients do not have
};

}  // namespace accord::trainer
