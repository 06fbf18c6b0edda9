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

StatusOr<weights::ExportReport> PublishedPolicy::export_masters(bool to_host) {
  if (exporter_) {
    const weights::DeviceMasters masters = [this](const std::string& name) {
      return trainer_.device_master(name);
    };
    weights::Arena* const host = to_host ? &arena_.host() : nullptr;
    ACCORD_ASSIGN_OR_RETURN(const std::span<const ExportCounts> exported, trainer_.exported());
    if (exported.empty()) {
      return exporter_->run(masters, arena_.data(), host, pool_);
    }
    std::vector<ExportCounts> counts;
    for (const size_t parameter : parameters_) {
      counts.push_back(exported[parameter]);
    }
    return exporter_->finish(masters, counts, arena_.data(), host, pool_);
  }
  return weights::export_weights(
      policy_.manifest, policy_.plan,
      [this](const std::string& name) -> std::span<const float> { return trainer_.master(name); },
      arena_.host(), pool_, {.owned = owned_});
}

Status PublishedPolicy::publish(Communicator* group, bool to_host, Deadline deadline) {
  const bool through_host = group != nullptr && group->device_collectives() == nullptr;
  ACCORD_ASSIGN_OR_RETURN(weights::ExportReport report, export_masters(to_host || through_host));
  records_.clear();
  for (weights::ExportedTensor& t : report.tensors) {
    records_.push_back({std::move(t.name), std::move(t.digest), t.amax, t.saturated, t.flushed});
  }
  if (group == nullptr) {
    return absl::OkStatus();
  }
  ACCORD_RETURN_IF_ERROR(exchange_records(*group, deadline));
  if (through_host) {
    ACCORD_RETURN_IF_ERROR(share_on_host(*group, deadline));
  } else {
    ACCORD_RETURN_IF_ERROR(share_on_device(*group, deadline));
    if (to_host) {
      ACCORD_RETURN_IF_ERROR(arena_.download());
    }
  }
  return trainer_.share_originals(deadline);
}

Status PublishedPolicy::exchange_records(Communicator& group, Deadline deadline) {
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
  return absl::OkStatus();
}

Status PublishedPolicy::share_on_host(Communicator& group, Deadline deadline) {
  ACCORD_RETURN_IF_ERROR(weights::share_arena(policy_.manifest, owners_, holds_, arena_.host().data(),
                                              weights::UpdateOptions{}.chunk_bytes,
                                              make_update_channel(group, deadline)));
  ACCORD_RETURN_IF_ERROR(
      weights::verify_tensors(policy_.manifest, arena_.host().data(), digests(), holds_, pool_));
  return arena_.upload();
}

// Exports are done when they return, so the channel's stream may read them.
Status PublishedPolicy::share_on_device(Communicator& group, Deadline deadline) {
  if (!updates_) {
    ACCORD_ASSIGN_OR_RETURN(const Device device, Device::open(trainer_.device()));
    ACCORD_ASSIGN_OR_RETURN(updates_, DeviceUpdates::create(policy_.manifest, device));
  }
  ACCORD_RETURN_IF_ERROR(weights::share_arena(policy_.manifest, owners_, holds_, arena_.data(),
                                              DeviceUpdates::options(0).chunk_bytes,
                                              updates_->channel(group, deadline)));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> found, updates_->digests_of(arena_.data()));
  return weights::compare_digests(policy_.manifest, found, digests(), holds_);
}

std::vector<std::string> PublishedPolicy::digests() const {
  std::vector<std::string> digests;
  for (const TensorRecord& record : records_) {
    digests.push_back(record.digest);
  }
  return digests;
}

}  // namespace accord::controller
