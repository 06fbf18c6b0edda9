#include <algorithm>
#include <utility>

#include "controller/device_weights.hpp"
#include "controller/reference_forward.hpp"
#include "device/device_buffer.hpp"
#include "device/stream.hpp"
#include "kernels/logprob/logprob_cuda.hpp"
#include "model/cuda_model.hpp"

namespace accord::controller {
namespace {

class CudaReference final : public ReferenceForward {
 public:
  CudaReference(std::unique_ptr<DeviceWeights> weights, std::unique_ptr<model::CudaModel> model)
      : weights_(std::move(weights)),
        device_(weights_->device()),
        stream_(weights_->stream()),
        model_(std::move(model)) {}

  Status logprobs(const trainer::PackedBatch& packed, std::span<const float> temperatures,
                  std::span<float> logprobs) override;

 private:
  Status upload(const trainer::PackedBatch& packed, std::span<const float> temperatures);
  Status run_layers(const trainer::PackedBatch& packed);

  const std::unique_ptr<DeviceWeights> weights_;
  const Device& device_;
  const Stream& stream_;
  const std::unique_ptr<model::CudaModel> model_;
  DeviceBuffer x_, k_, v_, logits_, logprobs_;
  DeviceBuffer rows_, tokens_, temperatures_;  // per response token
};

// What the call's inputs are copied from lives until its end, where the host waits.
Status CudaReference::upload(const trainer::PackedBatch& packed, std::span<const float> temperatures) {
  const auto send = [this](DeviceBuffer& to, auto values) -> Status {
    ACCORD_RETURN_IF_ERROR(to.ensure(device_, values.size_bytes()));
    return stream_.copy(to.data(), values.data(), values.size_bytes());
  };
  ACCORD_RETURN_IF_ERROR(send(rows_, packed.response_rows()));
  ACCORD_RETURN_IF_ERROR(send(tokens_, packed.response_tokens()));
  return send(temperatures_, temperatures);
}

Status CudaReference::run_layers(const trainer::PackedBatch& packed) {
  const ModelConfig& c = model_->config();
  const int64_t rows = packed.num_rows();
  const KvWidths widths = kv_widths(c);
  ACCORD_RETURN_IF_ERROR(x_.ensure_matrix(device_, Dtype::kBF16, rows, c.hidden_size));
  ACCORD_RETURN_IF_ERROR(k_.ensure_matrix(device_, Dtype::kBF16, rows, widths.k));
  ACCORD_RETURN_IF_ERROR(v_.ensure_matrix(device_, Dtype::kBF16, rows, widths.v));
  const MatrixView x_TH = x_.matrix(Dtype::kBF16, rows, c.hidden_size);
  // A layer is done before the next one begins: one layer's cache serves all.
  const model::KvLayer kv = model::kv_layer(c, Dtype::kBF16, rows, k_.data(), v_.data());
  ACCORD_RETURN_IF_ERROR(model_->set_batch(packed.batch()));
  model_->embed(x_TH);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    model_->layer_forward(layer, kv, x_TH, {}, nullptr);
  }
  return absl::OkStatus();
}

Status CudaReference::logprobs(const trainer::PackedBatch& packed, std::span<const float> temperatures,
                               std::span<float> logprobs) {
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_RETURN_IF_ERROR(upload(packed, temperatures));
  ACCORD_RETURN_IF_ERROR(run_layers(packed));
  const ModelConfig& c = model_->config();
  const MatrixView x_TH = x_.matrix(Dtype::kBF16, packed.num_rows(), c.hidden_size);
  const auto count = static_cast<int64_t>(logprobs.size());
  const int64_t chunk = std::min(reference_chunk(c.vocab_size), count);
  ACCORD_RETURN_IF_ERROR(logits_.ensure_matrix(device_, Dtype::kF32, chunk, c.vocab_size));
  ACCORD_RETURN_IF_ERROR(logprobs_.ensure(device_, logprobs.size_bytes()));
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t n = std::min(chunk, count - begin);
    const MatrixView logits = logits_.matrix(Dtype::kF32, n, c.vocab_size);
    ACCORD_RETURN_IF_ERROR(model_->logits(x_TH, rows_.as<int32_t>() + begin, n, logits));
    kernels::cuda::token_logprobs(logits, temperatures_.as<float>() + begin, tokens_.as<int32_t>() + begin,
                                  logprobs_.as<float>() + begin, nullptr, stream_.handle());
  }
  ACCORD_RETURN_IF_ERROR(stream_.copy(logprobs.data(), logprobs_.data(), logprobs.size_bytes()));
  return stream_.synchronize();
}

}  // namespace

StatusOr<std::unique_ptr<ReferenceForward>> make_cuda_reference(std::unique_ptr<LocalModel> model,
                                                                const Device& device) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<DeviceWeights> weights, DeviceWeights::copy(*model, device));
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights bound, weights->bind());
  ACCORD_ASSIGN_OR_RETURN(
      std::unique_ptr<model::CudaModel> on_device,
      model::CudaModel::create(weights->config(), std::move(bound), device, weights->stream()));
  ACCORD_RETURN_IF_ERROR(on_device->check_weights());
  return std::make_unique<CudaReference>(std::move(weights), std::move(on_device));
}

}  // namespace accord::controller
