#include <algorithm>
#include <memory>
#include <utility>

#include "bench/device_bench.hpp"
#include "bench/memory_linear.hpp"
#include "bench/random_policy.hpp"
#include "model/cuda_linear.hpp"
#include "model/forward.hpp"
#include "trainer/cuda_linear_backward.hpp"

namespace accord::bench {
namespace {

constexpr int64_t kHeadDim = 32;
constexpr int64_t kVocab = 32;

// A model whose layer's gate projection is the linear under test.
ModelConfig config_of(const MemoryOptions& options) {
  ModelConfig c;
  c.architecture = Architecture::kLlama;
  c.vocab_size = kVocab;
  c.hidden_size = options.inputs;
  c.num_layers = 1;
  c.num_heads = options.inputs / kHeadDim;
  c.num_kv_heads = 1;
  c.head_dim = kHeadDim;
  c.intermediate_size = options.outputs;
  c.layer_is_moe = {false};
  c.tie_word_embeddings = true;
  c.max_position_embeddings = options.rows;
  return c;
}

// What the trainer has before a layer runs: parameters, arena, input, the output's gradient.
class LinearUnderTest {
 public:
  LinearUnderTest(const MemoryOptions& options, const LinearMode& mode)
      : options_(options),
        gpu_(options.device),
        policy_(must(uniform_policy(config_of(options), mode.format))),
        arena_(gpu_.allocate(static_cast<size_t>(policy_.manifest.arena_bytes))),
        backward_{mode.backward, {}},
        parameters_(must(make_parameters())),
        params_(policy_.config, *parameters_),
        context_{policy_.config, gpu_.device(), gpu_.stream(), *parameters_, params_, backward_},
        gradient_of_linear_(context_),
        linears_(gpu_.device(), gpu_.stream()),
        x_(random(options.rows * options.inputs)),
        dy_(random(options.rows * options.outputs)) {
    fill_arena(policy_, arena_.as<std::byte>(), gpu_);
    weights_ = must(model::bind_weights(policy_.config, policy_.manifest, arena_.data()));
    must(parameters_->bind(policy_.manifest, arena_.data(),
                           mode.backward != recipe::BackwardMode::kDequantized));
    gpu_.synchronize();
  }

  MemoryResult measure() {
    MemoryResult result;
    for (const WeightEntry& entry : policy_.manifest.entries) {
      if (entry.name == "model.layers.0.mlp.gate_proj.weight") {
        result.weight_bytes = entry.data_bytes + entry.scale_bytes + entry.outer_bytes;
      }
    }
    const int64_t before = start();
    forward();
    result.peak_bytes[0] = peak() - before;
    y_ = Memory();  // the loss has had it
    const int64_t kept = start();
    backward();
    result.peak_bytes[1] = peak() - kept;
    result.peak_bytes[2] = std::max(result.peak_bytes[0], peak() - before);
    gpu_.synchronize();
    return result;
  }

 private:
  Memory random(int64_t count) const {
    Memory memory = gpu_.allocate(static_cast<size_t>(count) * sizeof(BF16));
    fill_random(gpu_, memory.as<BF16>(), count, 1.0F);
    return memory;
  }

  // Of a rank that does not own the weight, which has its BF16 copy instead of its master.
  StatusOr<std::unique_ptr<trainer::CudaParameters>> make_parameters() const {
    const ModelConfig& config = policy_.config;
    for (int32_t rank = 0; rank < 2; ++rank) {
      trainer::ShardOptions of_two;
      of_two.rank = rank;
      of_two.size = 2;
      ACCORD_ASSIGN_OR_RETURN(trainer::Shards shards, trainer::Shards::create(config, of_two));
      ACCORD_ASSIGN_OR_RETURN(trainer::ParameterTable table,
                              trainer::ParameterTable::create(config, {}, std::move(shards)));
      if (table.shards().owns(table.index("model.layers.0.mlp.gate_proj.weight"))) continue;
      return trainer::CudaParameters::create(std::move(table), gpu_.device(), gpu_.stream());
    }
    return internal_error("bench: both ranks own the weight");
  }

  const model::LinearWeight& weight() const { return weights_.layers[0].mlp[0].gate; }

  int64_t start() const {
    reset_memory_peak(gpu_.device());
    return memory_use(gpu_.device()).now;
  }
  int64_t peak() const { return memory_use(gpu_.device()).peak; }

  void forward() {
    y_ = gpu_.allocate(static_cast<size_t>(options_.rows * options_.outputs) * sizeof(BF16));
    const int64_t tile = model::CudaLinears::tile_rows(options_.rows, options_.outputs);
    must(linears_.reserve(tile * options_.inputs, tile, options_.inputs));
    const MatrixView x = matrix_view(x_.as<BF16>(), options_.rows, options_.inputs);
    const MatrixView y = matrix_view(y_.as<BF16>(), options_.rows, options_.outputs);
    model::CudaLinears::for_tiles(options_.rows, options_.outputs, [&](int64_t begin, int64_t count) {
      const model::CudaOperand operand =
          linears_.operand(x.slice_rows(begin, count), weight().activation_format());
      linears_.linear(operand, weight(), y.slice_rows(begin, count));
    });
  }

  void backward() {
    dx_ = gpu_.allocate(static_cast<size_t>(options_.rows * options_.inputs) * sizeof(BF16));
    dw_ = gpu_.allocate(static_cast<size_t>(options_.outputs * options_.inputs) * sizeof(BF16));
    trainer::CudaLinearBackward::Linear linear{params_.layers[0].mlp[0].gate, &weight(), dy_.as<BF16>()};
    linear.bf16_gradient = dw_.as<BF16>();
    must(gradient_of_linear_.run({linear}, x_.as<BF16>(), options_.rows, {dx_.data(), /*bf16=*/true}));
  }

  const MemoryOptions& options_;
  const Gpu gpu_;
  const RandomPolicy policy_;
  const Memory arena_;
  const trainer::BackwardOptions backward_;
  const std::unique_ptr<trainer::CudaParameters> parameters_;
  const trainer::ModelParams params_;
  const trainer::CudaContext context_;
  trainer::CudaLinearBackward gradient_of_linear_;
  model::CudaLinears linears_;
  const Memory x_, dy_;
  model::PolicyWeights weights_;
  Memory y_, dx_, dw_;
};

}  // namespace

MemoryResult measure_linear(const MemoryOptions& options, const LinearMode& mode) {
  MemoryResult result = LinearUnderTest(options, mode).measure();
  result.format = mode.format_name;
  result.mode = mode.mode_name;
  return result;
}

}  // namespace accord::bench
