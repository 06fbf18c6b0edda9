#pragma once
// accord verify: two checkpoints, or a checkpoint and a run's ledger, tensor by tensor under
// docs/contract.md.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace accord::controller {

enum class Relation : uint8_t {
  kEqual,      // the same elements, block scales and outer scale; or the same values, both unquantized
  kQuantized,  // quantizing the values of one (rounding them, if the other is BF16) gives the other's bytes
  kDecoded,    // one is unquantized BF16, and is what the other decodes to
  kDifferent,
};

std::string_view name_of(Relation relation);

struct VerifiedTensor {
  std::string name;
  std::string a;  // formats, as stored
  std::string b;
  Relation relation = Relation::kDifferent;
  std::string detail;  // of a difference: where the first one is
};

// Something beside the weights: a key of config.json, a tokenizer file, a producer, ...
struct OtherDifference {
  std::string name;
  std::string detail;
};

struct Verification {
  std::vector<VerifiedTensor> tensors;  // canonical order
  std::vector<OtherDifference> others;  // of two checkpoints
  int64_t count(Relation relation) const;
  bool ok() const { return count(Relation::kDifferent) == 0 && others.empty(); }
};

// Both are Hugging Face directories of the same architecture and sizes; either may be quantized. Compared are
// the weights, and what verification_metadata.hpp says. Errors: one
// that cannot be read; parameters that do not have the same names and shapes (65, names the first).
StatusOr<Verification> verify_checkpoints(const std::string& a, const std::string& b, int threads);

// The digests that a run's ledger.jsonl recorded of a version (the last line, or that of `step`) against the
// checkpoint's bytes: data, block scales and outer scale as they were broadcast.
StatusOr<Verification> verify_ledger(const std::string& checkpoint, const std::string& ledger,
                                     std::optional<int64_t> step, int threads);

}  // namespace accord::controller
