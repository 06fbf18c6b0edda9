#include "controller/published_policy.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string>

#include "controller/update_channel.hpp"
#include "weights/export.hpp"
#include "weights/transaction.hpp"

namespace accord::controller {
namespace {

constexpr size_t kDigestDigits = 32;

// A TensorRecord on its way between ranks of one build.
struct Record {
  char digest[kDigestDigits] = {};
  double amax = 0.0;
  double saturated = 0.0;
  double flushed = 0.0;
};

}  // namespace

PublishedPolicy::PublishedPolicy(const PolicySetup& policy, trainer::Trainer& trainer, PolicyArena& arena,
                                 ThreadPool& pool)
    : policy_(policy), trainer_(trainer), arena_(arena), pool_(pool) {
  for (const WeightEntry& entry : policy_.manifest.entries) {
    owners_.push_back(trainer_.owner(entry.name));
    owned_.push_back(trainer_.owns(entry.name));
    holds_.push_back(trainer_.holds(entry.name));
  }
  if (std::find(holds_.begin(), holds_.end(), false) == holds_.end()) {
    holds_.clear();
  }
}

StatusOr<std::unique_ptr<PublishedPolicy>> PublishedPolicy::create(const PolicySetup& policy,
                                                                   trainer::Trainer& trainer,
                                                                   PolicyArena& arena, ThreadPool& pool) {
  auto published = std::unique_ptr<PublishedPolicy>(new PublishedPolicy(policy, trainer, arena, pool));
  if (trainer.device().is_cuda()) {
    ACCORD_RETURN_IF_ERROR(published->match_parameters());
    ACCORD_ASSIGN_OR_RETURN(const Device device, Device::open(trainer.device()));
    ACCORD_ASSIGN_OR_RETURN(published->exporter_,
                            weights::DeviceExporter::create(policy.manifest, policy.plan, device,
                                                            *trainer.stream(), {.owned = published->owned_}));
  }
  return published;
}

Status PublishedPolicy::match_parameters() {
  std::map<std::string, size_t> places;
  for (const ParamSpec& spec : trainer_.parameters()) {
    places.emplace(spec.name, places.size());
  }
  for (const WeightEntry& entry : policy_.manifest.entries) {
    const auto place = places.find(entry.name);
    if (place == places.end()) {
      return internal_error("{}: the trainer has no such parameter", entry.name);
    }
    parameters_.push_back(place->second);
  }
  return absl::OkStatus();
}

StatusOr<weights::ExportReport> PublishedPolicy::export_masters() {
  if (exporter_) {
    const weights::DeviceMasters masters = [this](const std::string& name) {
      return trainer_.device_master(name);
    };
    ACCORD_ASSIGN_OR_RETURN(const std::span<const ExportCounts> exported, trainer_.exported());
    if (exported.empty()) {
      return exporter_->run(masters, arena_.data(), arena_.host(), pool_);
    }
    std::vector<ExportCounts> counts;
    for (const size_t parameter : parameters_) {
      counts.push_back(exported[parameter]);
    }
    return exporter_->finish(masters, counts, arena_.data(), arena_.host(), pool_);
  }
  return weights::export_weights(
      policy_.manifest, policy_.plan,
      [this](const std::string& name) -> std::span<const float> { return trainer_.master(name); },
      arena_.host(), pool_, {.owned = owned_});
}

Status PublishedPolicy::publish(Communicator* group, Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(weights::ExportReport report, export_masters());
  records_.clear();
  for (weights::ExportedTensor& t : report.tensors) {
    records_.push_back({std::move(t.name), std::move(t.digest), t.amax, t.saturated, t.flushed});
  }
  return group == nullptr ? absl::OkStatus() : exchange(*group, deadline);
}

Status PublishedPolicy::exchange(Communicator& group, Deadline deadline) {
  const size_t count = records_.size();
  std::vector<Record> mine(count);
  for (size_t i = 0; i < count; ++i) {
    const TensorRecord& record = records_[i];
    std::memcpy(mine[i].digest, record.digest.data(), std::min(record.digest.size(), kDigestDigits));
    mine[i].amax = record.amax;
    mine[i].saturated = record.saturated;
    mine[i].flushed = record.flushed;
  }
  std::vector<Record> all(count * static_cast<size_t>(group.size()));
  ACCORD_RETURN_IF_ERROR(
      group.all_gather(mine.data(), static_cast<int64_t>(count * sizeof(Record)), all.data(), deadline));
  for (size_t i = 0; i < count; ++i) {
    const Record& record = all[static_cast<size_t>(owners_[i]) * count + i];
    records_[i].digest.assign(record.digest, kDigestDigits);
    records_[i].amax = record.amax;
    records_[i].saturated = record.saturated;
    records_[i].flushed = record.flushed;
  }
  ACCORD_RETURN_IF_ERROR(weights::share_arena(policy_.manifest, owners_, holds_, arena_.host().data(),
                                              weights::UpdateOptions{}.chunk_bytes,
                                              make_update_channel(group, deadline)));
  ACCORD_RETURN_IF_ERROR(
      weights::verify_tensors(policy_.manifest, arena_.host().data(), digests(), holds_, pool_));
  ACCORD_RETURN_IF_ERROR(arena_.upload());
  return trainer_.share_originals(deadline);
}

std::vector<std::string> PublishedPolicy::digests() const {
  std::vector<std::string> digests;
  for (const TensorRecord& record : records_) {
    digests.push_back(record.digest);
  }
  return digests;
}

}  // namespace accord::controller
