#include "controller/weight_check.hpp"

#include <algorithm>

#include "controller/recorded_run.hpp"
#include "weights/digest.hpp"

namespace accord::controller {
namespace {

std::string version_text(std::optional<uint64_t> version) {
  return version ? fmt::format("version {}", *version) : "no whole version";
}

void compare(const std::string& worker, const HeldWeights& held, const RecordedVersion& ledger,
             std::vector<WeightDifference>& out) {
  if (held.version != ledger.version) {
    out.push_back({worker, "", version_text(ledger.version), version_text(held.version)});
  }
  if (held.tensors.size() != ledger.tensors.size()) {
    out.push_back({worker, "", fmt::format("{} tensors", ledger.tensors.size()),
                   fmt::format("{} tensors", held.tensors.size())});
    return;
  }
  for (size_t i = 0; i < held.tensors.size(); ++i) {
    const HeldWeights::Tensor& tensor = held.tensors[i];
    const RecordedVersion::Tensor& recorded = ledger.tensors[i];
    if (tensor.name != recorded.name) {
      out.push_back({worker, "", "tensor " + recorded.name, "tensor " + tensor.name});
    } else if (tensor.digest != recorded.digest) {
      out.push_back({worker, tensor.name, recorded.digest, tensor.digest});
    }
  }
}

}  // namespace

HeldWeights hold_weights(std::optional<uint64_t> version, const WeightManifest& manifest,
                         const weights::Arena& arena, ThreadPool& pool) {
  HeldWeights held;
  held.version = version;
  std::vector<std::string> digests = weights::per_tensor_digests(manifest, arena.data(), pool);
  for (size_t i = 0; i < digests.size(); ++i) {
    held.tensors.push_back({manifest.entries[i].name, std::move(digests[i])});
  }
  return held;
}

StatusOr<WeightCheck> check_weights(const Pools& pools, const std::string& ledger_path, uint64_t version) {
  ACCORD_ASSIGN_OR_RETURN(const RecordedVersion ledger, read_ledger_version(ledger_path, version));
  std::vector<HeldWeights> held(pools.size());
  ACCORD_RETURN_IF_ERROR(for_all(pools.size(), [&](size_t i) -> Status {
    ACCORD_ASSIGN_OR_RETURN(held[i], pools.member(i).held_weights());
    return absl::OkStatus();
  }));
  WeightCheck check;
  check.version = version;
  check.workers = pools.size();
  check.tensors = ledger.tensors.size();
  for (size_t i = 0; i < held.size(); ++i) {
    compare(pools.name(i), held[i], ledger, check.differences);
  }
  return check;
}

}  // namespace accord::controller
