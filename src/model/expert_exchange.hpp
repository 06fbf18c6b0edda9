#pragma once
// Expert parallelism: the experts of every MoE layer are spread over the E places of a group; place p holds
// experts [p*num_experts/E, (p+1)*num_experts/E). The rows of a layer (one per token and slot) travel from
// their home, where the token is, to their owner, which holds the expert, and the results travel back:
//
//   home order     by expert, then by token: the rows of one owner are consecutive
//   arrival order  by source place, then as at home: what arrives at an owner
//   owner order    by expert, then by source place, then as at home: the rows of one expert are consecutive
//
// Every place makes the same calls in the same order, also those without a row.
#include <cstdint>
#include <span>
#include <vector>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"

namespace accord::model {

// Where the rows of one layer went.
struct ExchangePlan {
  std::vector<int64_t> sent;            // [E] rows from here to each place; together R
  std::vector<int64_t> arrived;         // [E] rows from each place; together A
  std::vector<int32_t> expert_offsets;  // [held experts + 1] first row of each, in owner order
  std::vector<int32_t> order;           // [A] arrival row of each row in owner order
  int64_t most_arrived = 0;             // the largest A of all places

  int64_t num_sent() const;
  int64_t num_arrived() const { return static_cast<int64_t>(order.size()); }
};

class ExpertExchange {
 public:
  // `group` must outlive this; its rank is the place. num_experts % group.size() must be 0.
  ExpertExchange(Communicator& group, int64_t num_experts);

  int64_t places() const { return group_.size(); }
  int64_t place() const { return group_.rank(); }
  int64_t num_held() const { return num_experts_ / places(); }
  int64_t first_held() const { return place() * num_held(); }

  // Ends the calls below. Expired until set.
  void set_deadline(Deadline deadline) { deadline_ = deadline; }

  // `expert_offsets` [experts + 1]: first row of each expert in home order.
  Status plan(std::span<const int32_t> expert_offsets, ExchangePlan& plan);
  // home_order [R] -> arrival_order [A] at the owners, and back. A row has `row_bytes` bytes.
  Status to_owners(const ExchangePlan& plan, const void* home_order, int64_t row_bytes, void* arrival_order);
  Status to_homes(const ExchangePlan& plan, const void* arrival_order, int64_t row_bytes, void* home_order);
  // The largest `value` of all places.
  StatusOr<int64_t> largest(int64_t value);

 private:
  Status move(std::span<const int64_t> out_rows, const void* out, std::span<const int64_t> in_rows, void* in,
              int64_t row_bytes);

  Communicator& group_;
  const int64_t num_experts_;
  Deadline deadline_;
  std::vector<int32_t> my_counts_, counts_;  // [experts], [E * experts]
  std::vector<int64_t> out_bytes_, in_bytes_;
};

// Rows [begin, end) of the owner order: arrival_order[order[i]] = owner_order[i].
void to_arrival_order(const ExchangePlan& plan, const void* owner_order, int64_t row_bytes, int64_t begin,
                      int64_t end, void* arrival_order);

}  // namespace accord::model
