#pragma once
// Inside of CudaModel. Not for other rooms.
#include <memory>
#include <utility>
#include <vector>

#include "kernels/attention/attention_cuda.hpp"
#include "kernels/gemm/fragments.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/rope/rope.hpp"
#include "model/cuda_linear.hpp"
#include "model/cuda_model.hpp"

namespace accord::model {

// The parts of a layer that CudaModel::Impl keeps between calls.
struct CudaExperts {
  DeviceBuffer weights;    // GemmWeight [3][E]: gate, up, down
  DeviceBuffer fragments;  // of those that have any (keep_expert_fragments)
  const kernels::cuda::GemmWeight* gate = nullptr;
  const kernels::cuda::GemmWeight* up = nullptr;
  const kernels::cuda::GemmWeight* down = nullptr;

  bool has_fragments(const LinearWeight& any) const {
    return fragments.data() != nullptr && kernels::takes_fragments(any.format, any.n, any.k);
  }
};

// The batch on the device. Rows that decode (segments of one row at the batch's start) and the others run as
// two launches of attention.
struct CudaBatch {
  int64_t rows = 0;
  int64_t decode_rows = 0;
  int32_t decode_splits = 1;  // of the longest decoding context, rounded up to a power of two
  int32_t num_decode_tiles = 0;
  int32_t num_tiles = 0;
  DeviceBuffer staging;  // pinned
  DeviceBuffer memory;
  Event copied;  // the staging may be written again
  bool in_flight = false;
  const int32_t* tokens = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* kv_rows = nullptr;
  const int32_t* pages = nullptr;
  const kernels::cuda::AttentionTile* decode_tiles = nullptr;
  const kernels::cuda::AttentionTile* tiles = nullptr;
};

struct CudaModel::Impl {
  Impl(const ModelConfig& c, PolicyWeights w, const Device& d, const Stream& s)
      : config(c),
        weights(std::move(w)),
        device(d),
        stream(s),
        rope(c.head_dim, c.rope_theta, c.rope_scaling),
        linears(d, s) {}

  Status check_shapes() const;
  Status upload_experts(bool fragments);
  void make_fragments();
  Status find_block_scaled();
  Status ensure_rope(int64_t positions);
  Status reserve(int64_t rows);
  Status reserve_head(int64_t rows, bool own_normed);
  kernels::cuda::AttentionDims attention_dims() const;
  kernels::cuda::RopeTableView rope_view() const;
  void copy_on_device(void* to, const void* from, size_t bytes);
  void attend(MatrixView query, const KvLayer& kv, MatrixView out, float* lse);

  StreamHandle handle() const { return stream.handle(); }

  ModelConfig config;
  PolicyWeights weights;
  Device device;
  const Stream& stream;
  kernels::RopeTable rope;
  DeviceBuffer rope_memory;
  int64_t rope_positions = 0;
  CudaLinears linears;
  CudaBatch batch;
  std::vector<CudaExperts> experts;  // per layer
  DeviceBuffer partials;             // of attention's splits

  // Scratch of one layer; where the caller wants no tape, own_tape stands in.
  CudaLayerTape own_tape;
  DeviceBuffer k_normed;  // [T,C] after k norm, before rotary
  DeviceBuffer v;         // [T,C], or latent attention's keys and values per head, on their way to the cache
  DeviceBuffer turned;    // [T,heads*rope] rotary part of latent attention's queries
  DeviceBuffer branch;    // [T,H]
  // The layer whose norm has yet to add x_mid (own_tape) and branch, the layer before's, to x; -1: none.
  int64_t sum_due_in = -1;
  DeviceBuffer sort_scratch;  // int32
  DeviceBuffer head_rows;     // [R,H] rows of x before the final norm
  DeviceBuffer head_normed;   // [R,H]
  DeviceBuffer flags;         // int32 per linear: check_mxfp8_range
};

// One call of layer_forward.
void run_layer(CudaModel::Impl& model, int64_t layer, const KvLayer& kv, MatrixView x, CudaRouting routing,
               CudaLayerTape& tape, bool keep, bool next_follows);

// Latent attention up to the attention kernel, and after it (latent_attention.hpp says the steps). Reads
// tape.norm1, fills tape.q (and the absorbed forms) and the cache; finish writes tape.attn.
struct CudaLatent {
  MatrixView query;     // what attends
  MatrixView attended;  // where it goes
};
CudaLatent project_latent(CudaModel::Impl& model, const LayerWeights& weights, const KvLayer& kv,
                          const CudaLayerTape& tape);
void finish_latent(CudaModel::Impl& model, const LayerWeights& weights, const CudaLayerTape& tape);

}  // namespace accord::model
