// What to do is a function of the manifest: full blocks of all tensors in arena order are cut into passes,
// each of blocks that are there when so many bytes have arrived. A pass is two launches, over tables that lie
// on the device.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.hpp"
#include "device/memory.hpp"
#include "kernels/digest/digest_cuda.hpp"
#include "weights/device_digest.hpp"

namespace accord::weights {
namespace {

namespace cuda = kernels::cuda;
namespace xxh3 = kernels::xxh3;
using cuda::DigestBlocks;
using cuda::DigestInput;

constexpr int64_t kBlocksPerPiece = 64;

struct Pass {
  int64_t needed = 0;  // bytes that must have arrived
  size_t first_piece = 0, num_pieces = 0;
  size_t first_run = 0, num_runs = 0;
  int64_t num_blocks = 0;
};

DigestInput input_of(const WeightEntry& entry) {
  DigestInput input;
  const int64_t begin[] = {entry.data_offset, entry.scale_offset, entry.outer_offset};
  const int64_t bytes[] = {entry.data_bytes, entry.scale_bytes, entry.outer_bytes};
  std::copy_n(begin, DigestInput::kParts, input.begin);
  std::copy_n(bytes, DigestInput::kParts, input.bytes);
  input.length = bytes[0] + bytes[1] + bytes[2];
  return input;
}

// One past the arena's byte that holds byte `at` of the input.
int64_t arena_end_of(const DigestInput& input, int64_t at) {
  int part = 0;
  while (part + 1 < DigestInput::kParts && at >= input.bytes[part]) {
    at -= input.bytes[part++];
  }
  return input.begin[part] + at + 1;
}

// As base/hash.hpp writes a digest. Thousands are written while an update waits, so without a formatter.
std::string hex_of(const xxh3::Digest& digest) {
  std::string text(2 * 16, '0');
  for (size_t i = 0; i < text.size(); ++i) {
    const uint64_t half = i < 16 ? digest.high : digest.low;
    text[i] = "0123456789abcdef"[(half >> (60 - 4 * (i % 16))) & 15];
  }
  return text;
}

class CudaDigest final : public DeviceDigest {
 public:
  CudaDigest(const WeightManifest& manifest, const Device& device) : manifest_(manifest), device_(device) {}

  Status prepare(const DeviceDigestOptions& options);

  Status begin(const std::byte* arena) override;
  Status advance(int64_t count, const Stream& arrival) override;
  Status end(const Stream& arrival) override;
  const Stream& stream() const override { return stream_; }
  std::vector<std::string> digests() const override;

 private:
  void plan(const DeviceDigestOptions& options);
  void add_tensor(size_t tensor);
  void add_blocks(int32_t index, const DeviceDigestOptions& options);
  Status follow(const Stream& arrival);
  void run(const Pass& pass);
  template <class T>
  Status upload(const std::vector<T>& table, Memory& memory) const;

  const WeightManifest& manifest_;
  const Device device_;
  Stream stream_;
  Event arrived_;
  std::vector<int32_t> tensors_;  // per input: its place in the manifest
  std::vector<DigestInput> inputs_;
  std::vector<DigestBlocks> pieces_, runs_;
  std::vector<Pass> passes_;
  int64_t num_short_ = 0;
  Memory inputs_device_, pieces_device_, runs_device_;
  Memory sums_, states_, results_, results_host_;  // results: digests, then the short inputs' bytes
  const std::byte* arena_ = nullptr;
  size_t next_pass_ = 0;
};

void CudaDigest::add_tensor(size_t tensor) {
  DigestInput input = input_of(manifest_.entries[tensor]);
  if (input.length <= xxh3::kLongestShort) {
    input.short_slot = num_short_++;
  }
  tensors_.push_back(static_cast<int32_t>(tensor));
  inputs_.push_back(input);
}

void CudaDigest::plan(const DeviceDigestOptions& options) {
  for (const bool before_first : {false, true}) {  // in the order of arrival
    for (size_t i = 0; i < manifest_.entries.size(); ++i) {
      const bool chosen = options.chosen.empty() || options.chosen[i];
      if (chosen && (manifest_.entries[i].data_offset < options.first_byte) == before_first) {
        add_tensor(i);
      }
    }
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].short_slot < 0) {
      add_blocks(static_cast<int32_t>(i), options);
    }
  }
}

// The input's blocks, into the last pass until its bytes are full, then into new ones.
void CudaDigest::add_blocks(int32_t index, const DeviceDigestOptions& options) {
  const DigestInput& input = inputs_[static_cast<size_t>(index)];
  const int64_t total = xxh3::num_full_blocks(input.length);
  for (int64_t first = 0; first < total;) {
    const int64_t pass_blocks = std::max<int64_t>(options.pass_bytes / xxh3::kBlock, 1);
    if (passes_.empty() || passes_.back().num_blocks >= pass_blocks) {
      passes_.push_back({.first_piece = pieces_.size(), .first_run = runs_.size()});
    }
    Pass& pass = passes_.back();
    const int64_t count = std::min(total - first, pass_blocks - pass.num_blocks);
    runs_.push_back({first, pass.num_blocks, index, static_cast<int32_t>(count)});
    ++pass.num_runs;
    for (int64_t done = 0; done < count; done += kBlocksPerPiece) {
      pieces_.push_back({first + done, pass.num_blocks + done, index,
                         static_cast<int32_t>(std::min(kBlocksPerPiece, count - done))});
      ++pass.num_pieces;
    }
    first += count;
    pass.num_blocks += count;
    const int64_t end = arena_end_of(input, first * xxh3::kBlock - 1);
    const bool goes_round = end <= options.first_byte;
    pass.needed = std::max(pass.needed, end - options.first_byte + (goes_round ? manifest_.arena_bytes : 0));
  }
}

template <class T>
Status CudaDigest::upload(const std::vector<T>& table, Memory& memory) const {
  ACCORD_ASSIGN_OR_RETURN(memory, Memory::allocate(device_, table.size() * sizeof(T)));
  return stream_.copy(memory.data(), table.data(), table.size() * sizeof(T));
}

Status CudaDigest::prepare(const DeviceDigestOptions& options) {
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_ASSIGN_OR_RETURN(stream_, Stream::create(device_));
  ACCORD_ASSIGN_OR_RETURN(arrived_, Event::create(device_));
  plan(options);
  ACCORD_RETURN_IF_ERROR(upload(inputs_, inputs_device_));
  ACCORD_RETURN_IF_ERROR(upload(pieces_, pieces_device_));
  ACCORD_RETURN_IF_ERROR(upload(runs_, runs_device_));
  int64_t most = 0;
  for (const Pass& pass : passes_) {
    most = std::max(most, pass.num_blocks);
  }
  constexpr size_t kStateBytes = xxh3::kLanes * sizeof(uint64_t);
  ACCORD_ASSIGN_OR_RETURN(sums_, Memory::allocate(device_, static_cast<size_t>(most) * kStateBytes));
  ACCORD_ASSIGN_OR_RETURN(states_, Memory::allocate(device_, inputs_.size() * kStateBytes));
  const size_t bytes =
      inputs_.size() * sizeof(xxh3::Digest) + static_cast<size_t>(num_short_) * xxh3::kLongestShort;
  ACCORD_ASSIGN_OR_RETURN(results_, Memory::allocate(device_, bytes));
  ACCORD_ASSIGN_OR_RETURN(results_host_, Memory::allocate(device_, bytes, MemoryKind::kPinned));
  ACCORD_RETURN_IF_ERROR(stream_.fill(results_.data(), 0, bytes));
  return stream_.synchronize();
}

Status CudaDigest::begin(const std::byte* arena) {
  arena_ = arena;
  next_pass_ = 0;
  return absl::OkStatus();
}

Status CudaDigest::follow(const Stream& arrival) {
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_RETURN_IF_ERROR(arrived_.record(arrival));
  return stream_.wait(arrived_);
}

void CudaDigest::run(const Pass& pass) {
  cuda::digest_blocks(arena_, inputs_device_.as<DigestInput>(),
                      pieces_device_.as<DigestBlocks>() + pass.first_piece,
                      static_cast<int64_t>(pass.num_pieces), sums_.as<uint64_t>(), stream_.handle());
  cuda::digest_chain(runs_device_.as<DigestBlocks>() + pass.first_run, static_cast<int64_t>(pass.num_runs),
                     sums_.as<uint64_t>(), states_.as<uint64_t>(), stream_.handle());
}

Status CudaDigest::advance(int64_t count, const Stream& arrival) {
  if (next_pass_ == passes_.size() || passes_[next_pass_].needed > count) {
    return absl::OkStatus();
  }
  ACCORD_RETURN_IF_ERROR(follow(arrival));
  for (; next_pass_ < passes_.size() && passes_[next_pass_].needed <= count; ++next_pass_) {
    run(passes_[next_pass_]);
  }
  return absl::OkStatus();
}

Status CudaDigest::end(const Stream& arrival) {
  ACCORD_RETURN_IF_ERROR(follow(arrival));
  for (; next_pass_ < passes_.size(); ++next_pass_) {
    run(passes_[next_pass_]);
  }
  auto* const digests = results_.as<xxh3::Digest>();
  cuda::digest_finish(arena_, inputs_device_.as<DigestInput>(), static_cast<int64_t>(inputs_.size()),
                      states_.as<uint64_t>(), digests, reinterpret_cast<uint8_t*>(digests + inputs_.size()),
                      stream_.handle());
  return stream_.copy(results_host_.data(), results_.data(), results_.bytes());
}

std::vector<std::string> CudaDigest::digests() const {
  std::vector<std::string> out(manifest_.entries.size());
  const auto* const digests = results_host_.as<xxh3::Digest>();
  const auto* const short_bytes = reinterpret_cast<const uint8_t*>(digests + inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const DigestInput& input = inputs_[i];
    out[static_cast<size_t>(tensors_[i])] =
        input.short_slot < 0 ? hex_of(digests[i])
                             : digest_hex(short_bytes + input.short_slot * xxh3::kLongestShort,
                                          static_cast<size_t>(input.length));
  }
  return out;
}

}  // namespace

StatusOr<std::unique_ptr<DeviceDigest>> DeviceDigest::create(const WeightManifest& manifest,
                                                             const Device& device,
                                                             const DeviceDigestOptions& options) {
  auto digest = std::make_unique<CudaDigest>(manifest, device);
  ACCORD_RETURN_IF_ERROR(digest->prepare(options));
  return digest;
}

}  // namespace accord::weights
