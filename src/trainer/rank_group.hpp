#pragma once
// What the ranks of a trainer pool tell each other besides gradients: errors, counts, records. A single rank
// talks to nobody.
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"

namespace accord::trainer {

class RankGroup {
 public:
  RankGroup(int32_t rank, int32_t size) : rank_(rank), size_(size) {}

  // `communicator` must outlive its use. Errors (kInternal): another rank or size.
  Status connect(Communicator& communicator);
  bool alone() const { return size_ == 1; }
  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  // kInternal before connect().
  StatusOr<Communicator*> communicator() const;

  // Everybody's value, by rank.
  template <class T>
  StatusOr<std::vector<T>> gather(const T& value, Deadline deadline) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<size_t>(size_));
    ACCORD_RETURN_IF_ERROR(gather_bytes(&value, sizeof(T), all.data(), deadline));
    return all;
  }

  // Everybody's values, one rank after the other; counts[r] are rank r's.
  template <class T>
  StatusOr<std::vector<T>> concatenate(std::span<const T> values, std::span<const int64_t> counts,
                                       Deadline deadline) const {
    static_assert(std::is_trivially_copyable_v<T>);
    int64_t total = 0;
    for (int64_t count : counts) total += count;
    std::vector<T> all(static_cast<size_t>(total));
    ACCORD_RETURN_IF_ERROR(concatenate_bytes(values.data(), counts, sizeof(T), all.data(), deadline));
    return all;
  }

  // OK where all ranks are; else the error of the lowest rank that has one, on every rank. So all of them go
  // on, or none.
  Status agree(const Status& mine, Deadline deadline) const;

 private:
  Status gather_bytes(const void* in, int64_t bytes, void* out, Deadline deadline) const;
  Status concatenate_bytes(const void* in, std::span<const int64_t> counts, int64_t element_bytes, void* out,
                           Deadline deadline) const;

  int32_t rank_;
  int32_t size_;
  Communicator* communicator_ = nullptr;
};

}  // namespace accord::trainer
