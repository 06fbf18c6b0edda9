#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "base/files.hpp"
#include "base/hash.hpp"
#include "base/mapped_memory.hpp"
#include "base/strict_json.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "controller/verification.hpp"
#include "device/thread_pool.hpp"

namespace accord::controller {
namespace {

using checkpoint::Encoding;
using checkpoint::HfCheckpoint;
using checkpoint::StoredWeight;

constexpr int64_t kMaxLedgerBytes = int64_t{4} << 30;
constexpr int64_t kPart = int64_t{1} << 20;
constexpr int64_t kBatchElements = int64_t{1} << 27;  // then the checkpoint's memory is released

struct LedgerLine {
  int64_t step = -1;
  std::map<std::string, std::string> digests;
};

StatusOr<LedgerLine> parse_line(std::string_view text, const std::string& where) {
  StatusOr<Json> json = parse_json(text);
  if (!json.ok()) {
    return annotate(json.status(), where);
  }
  const auto bad = [&] {
    return data_error("{}: is not a line of a ledger: step and tensors with name and digest are needed",
                      where);
  };
  if (!json->is_object() || !json->contains("step") || !json->at("step").is_number_integer() ||
      !json->contains("tensors") || !json->at("tensors").is_array()) {
    return bad();
  }
  LedgerLine line;
  line.step = json->at("step").get<int64_t>();
  for (const Json& tensor : json->at("tensors")) {
    if (!tensor.is_object() || !tensor.contains("name") || !tensor.at("name").is_string() ||
        !tensor.contains("digest") || !tensor.at("digest").is_string()) {
      return bad();
    }
    line.digests[tensor.at("name").get<std::string>()] = tensor.at("digest").get<std::string>();
  }
  return line;
}

// The last line, or the last one of `step`: a version that was exported anew has two.
StatusOr<LedgerLine> find_line(const std::string& path, std::optional<int64_t> step) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxLedgerBytes));
  std::optional<LedgerLine> found;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.empty()) {
      continue;
    }
    ACCORD_ASSIGN_OR_RETURN(LedgerLine parsed, parse_line(line, fmt::format("{}:{}", path, number)));
    if (!step || parsed.step == *step) {
      found = std::move(parsed);
    }
  }
  if (!found) {
    return data_error("{}: has no line{}", path, step ? fmt::format(" of step {}", *step) : "");
  }
  return *std::move(found);
}

void hash_memory(const std::byte* data, int64_t size, Hasher& hasher) {
  for (int64_t at = 0; at < size; at += kPart) {
    const auto count = static_cast<size_t>(std::min(kPart, size - at));
    hasher.update(data + at, count);
    release_mapped(data + at, count);
  }
}

// Data, block scales and outer scale, as weights::tensor_digest takes them.
StatusOr<std::string> digest_of(const HfCheckpoint& source, const ParamSpec& spec) {
  const StoredWeight& weight = *source.stored(spec.name);
  Hasher hasher;
  if (weight.encoding != Encoding::kPlain) {
    hash_memory(weight.data->data, weight.data->bytes, hasher);
    hash_memory(weight.scales->data, weight.scales->bytes, hasher);
    if (weight.encoding == Encoding::kNvfp4) {
      hasher.update(&weight.outer, sizeof(weight.outer));
    }
    return hasher.hex();
  }
  if (checkpoint::plain_dtype(spec) == Dtype::kF32) {
    std::vector<float> values(static_cast<size_t>(weight.numel()));
    ACCORD_RETURN_IF_ERROR(source.read_f32(spec.name, values));
    hasher.update(values.data(), values.size() * sizeof(float));
    return hasher.hex();
  }
  std::vector<BF16> part(static_cast<size_t>(std::min(kPart, weight.numel())));
  for (int64_t at = 0; at < weight.numel(); at += static_cast<int64_t>(part.size())) {
    const auto count = std::min<int64_t>(static_cast<int64_t>(part.size()), weight.numel() - at);
    const auto values = std::span(part).first(static_cast<size_t>(count));
    ACCORD_RETURN_IF_ERROR(source.read_bf16(spec.name, at, values));
    hasher.update(values.data(), values.size_bytes());
  }
  return hasher.hex();
}

}  // namespace

StatusOr<Verification> verify_ledger(const std::string& checkpoint, const std::string& ledger,
                                     std::optional<int64_t> step, int threads) {
  ACCORD_ASSIGN_OR_RETURN(const HfCheckpoint source, HfCheckpoint::open(checkpoint));
  ACCORD_ASSIGN_OR_RETURN(const LedgerLine line, find_line(ledger, step));
  const std::vector<ParamSpec>& specs = source.specs();
  std::vector<Status> statuses(specs.size());
  std::vector<std::string> digests(specs.size());
  ThreadPool pool(threads > 0 ? threads
                              : static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  for (size_t begin = 0; begin < specs.size();) {
    size_t end = begin;
    for (int64_t elements = 0; end < specs.size() && elements < kBatchElements; ++end) {
      elements += specs[end].numel();
    }
    pool.parallel_for(static_cast<int64_t>(end - begin), [&](int64_t i) {
      const size_t index = begin + static_cast<size_t>(i);
      StatusOr<std::string> digest = digest_of(source, specs[index]);
      statuses[index] = digest.status();
      if (digest.ok()) {
        digests[index] = *std::move(digest);
      }
    });
    source.release_all();
    begin = end;
  }
  Verification result;
  for (size_t i = 0; i < specs.size(); ++i) {
    ACCORD_RETURN_IF_ERROR(statuses[i]);
    VerifiedTensor tensor{specs[i].name, std::string(name_of(source.stored(specs[i].name)->encoding)),
                          fmt::format("step {}", line.step), Relation::kDifferent, ""};
    const auto recorded = line.digests.find(specs[i].name);
    if (recorded == line.digests.end()) {
      tensor.detail = "is not in the ledger";
    } else if (recorded->second != digests[i]) {
      tensor.detail = fmt::format("digest {} against {}", digests[i], recorded->second);
    } else {
      tensor.relation = Relation::kEqual;
    }
    result.tensors.push_back(std::move(tensor));
  }
  for (const auto& [name, digest] : line.digests) {
    if (source.stored(name) == nullptr) {
      result.tensors.push_back({name, "absent", fmt::format("step {}", line.step), Relation::kDifferent,
                                "is not in the checkpoint"});
    }
  }
  return result;
}

}  // namespace accord::controller
