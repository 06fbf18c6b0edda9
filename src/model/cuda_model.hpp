#pragma once
// The forward of forward.hpp on a CUDA device, over the same arena bytes: rollout and trainer call these
// functions, and only the batch differs (paged decode, chunked prefill, packed training sequences), so their
// results have equal bits. Activations are BF16.
//
// Everything runs in the order of one stream and nothing waits, but for set_batch where the batch before is
// still on its way, and for experts' block-scaled products, once a layer (cuda_block_scaled.hpp). Launches do
// not fail (device/launch.hpp); copies and allocations return a Status.
//
// Legend as in forward.hpp; views and pointers are the device's unless they say host.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "device/device.hpp"
#include "device/device_buffer.hpp"
#include "device/stream.hpp"
#include "kernels/rope/rope_cuda.hpp"
#include "model/forward.hpp"

namespace accord::model {

// What one layer's backward needs (LayerTape's counterpart). BF16 unless said otherwise.
struct CudaMlaTape {
  DeviceBuffer q_a, q_a_norm, inv_rms_q_a;  // [T,q_lora]; [T] fp32
  DeviceBuffer kv_a, latent, inv_rms_kv_a;  // [T,kv_lora+rope], [T,kv_lora]; [T] fp32
  DeviceBuffer q_latent, attn_latent;       // absorbed: [T,heads*(kv_lora+rope)], [T,heads*kv_lora]
};
struct CudaLayerTape {
  DeviceBuffer norm1, inv_rms1;         // [T,H]; [T] fp32
  DeviceBuffer q_raw, k_raw;            // [T,Q], [T,C] before q/k norm and rotary
  DeviceBuffer inv_rms_q, inv_rms_k;    // [T,heads], [T,kv_heads] fp32
  DeviceBuffer q, attn, lse;            // [T,Q], [T,Q]; [T,heads] fp32
  DeviceBuffer x_mid, norm2, inv_rms2;  // [T,H], [T,H]; [T] fp32
  CudaMlaTape mla;                      // latent attention; q_raw and k_raw are not used then
  DeviceBuffer gate, up, act;           // dense [T,I]; MoE [R,I], R = T*K rows sorted by expert, then token
  DeviceBuffer down;                    // [R,H] (MoE)
  DeviceBuffer router_probs, topk_weights;    // [T,E], [T,K] fp32 (MoE)
  DeviceBuffer topk_ids;                      // [T,K] int32 (MoE)
  DeviceBuffer expert_offsets;                // [E+1] int32 (MoE)
  DeviceBuffer sorted_tokens, sorted_slots;   // [R] int32 (MoE)
  DeviceBuffer slot_rows;                     // [T,K] int32: the sorted row of each (token, slot) (MoE)
  DeviceBuffer group_tiles, num_group_tiles;  // the grouped products' list (gemm_cuda.hpp), of expert_offsets
  DeviceBuffer shared_gate, shared_up, shared_act;  // [T,shared I]

  // Room for `rows` rows of layer `layer`.
  Status reserve(const Device& device, const ModelConfig& config, int64_t layer, int64_t rows);
  // Adds where everything begins and ends.
  void addresses(std::vector<const void*>& out) const;
  // Bytes that reserve asks for.
  static int64_t bytes(const ModelConfig& config, int64_t layer, int64_t rows);
};

// Routing of one layer: expert ids [T*K] on the device, recorded in or replayed from there.
struct CudaRouting {
  int32_t* record = nullptr;
  const int32_t* replay = nullptr;
};

class CudaModel {
 public:
  // `weights`: bound to an arena on the device (bind_weights never reads it). `stream` is borrowed and must
  // outlive the model. Errors: a shape that the kernels do not take, naming the tensor or the config's key;
  // experts of one layer whose weights differ in format; on Blackwell, no cuBLASLt.
  static StatusOr<std::unique_ptr<CudaModel>> create(const ModelConfig& config, PolicyWeights weights,
                                                     const Device& device, const Stream& stream);
  ~CudaModel();

  // What computes its products, where that is more than the device (Device::arithmetic): cuBLASLt's version
  // and a digest of the algorithms that were chosen. Else empty.
  std::string products() const;
  // Also keeps routed experts' quantized weights in the order that products of few rows read best
  // (kernels/gemm/fragments.hpp), where a layer's shapes have one: expert_fragment_bytes more memory, the
  // same bits. check_weights() makes those copies. Error: no memory for them.
  Status keep_expert_fragments();
  // Whether launches of a batch may be captured as a graph: not where cuBLASLt multiplies, as experts'
  // products wait for the host, and what it does under capture has not been tried.
  bool capturable() const;

  const ModelConfig& config() const;
  const PolicyWeights& weights() const;
  const Device& device() const;
  const Stream& stream() const;

  // Call after the arena's bytes have changed, before the next forward: an MXFP8 weight whose scale lies
  // where BF16 cannot hold its values, or with a NaN code, is bad data (with the tensor's name). Waits for
  // the stream.
  Status check_weights();

  // Whether a batch can run (forward.hpp; host).
  Status check(const Batch& batch, int64_t kv_rows) const;
  Status check_replay(std::span<const int32_t> ids, int64_t num_rows) const;

  // Memory for batches of up to `rows` rows, and for logits of as many, at positions below `positions`: what
  // such batches need does not grow later, but for the scratch of long contexts.
  Status reserve(int64_t rows, int64_t positions);

  // Copies a (host) batch, which was checked, to the device; the calls below are about it until the next one.
  Status set_batch(const Batch& batch);
  int64_t num_rows() const;
  // Of a batch whose rows all decode, the launches' only other argument that is not an address or of the
  // model: parts that attention cuts the longest context into, rounded up to a power of two; else 0.
  int32_t decode_splits() const;
  // Adds the bounds of the memory that the launches below get, other than their arguments: launches of
  // batches with equal addresses, rows and decode_splits are the same, whatever else the batches hold.
  void addresses(std::vector<const void*>& out) const;
  const int32_t* tokens() const;     // [T]
  int32_t* batch_tokens();           // the same, which may be overwritten before embed()
  const int32_t* positions() const;  // [T]
  // Covers every position of the current batch.
  kernels::cuda::RopeTableView rope() const;

  // x_TH = embedding rows of the batch's tokens.
  void embed(MatrixView x_TH);
  // x_TH = layer(x_TH) in place; writes the batch's keys and values into `kv` (device memory; kv_layer of
  // forward.hpp). `tape`, reserved for the batch's rows, may be null: the model's own memory serves then.
  //
  // `next_follows` (without a tape): the next call is the next layer's, on the same x_TH and without a tape
  // either. What it adds to the residual stream may then be left to that layer's norm, and x_TH means nothing
  // in between.
  void layer_forward(int64_t layer, const KvLayer& kv, MatrixView x_TH, CudaRouting routing,
                     CudaLayerTape* tape, bool next_follows = false);
  // logits_RV (fp32) of rows[0..count) (device) of x; `normed_RH` (BF16, with inv_rms [R]) keeps the normed
  // rows. Error: no memory for them.
  Status logits(MatrixView x_TH, const int32_t* rows, int64_t count, MatrixView logits_RV,
                MatrixView* normed_RH = nullptr, float* inv_rms = nullptr);

  // Per layer and projection, the experts' weights as the grouped products take them (device); of an MoE
  // layer.
  struct ExpertWeights {
    const void* gate = nullptr;  // kernels::cuda::GemmWeight [E]
    const void* up = nullptr;
    const void* down = nullptr;
  };
  ExpertWeights expert_weights(int64_t layer) const;

  struct Impl;  // model room only

 private:
  explicit CudaModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace accord::model
