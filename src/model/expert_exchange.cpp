#include "model/expert_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace accord::model {

int64_t ExchangePlan::num_sent() const { return std::accumulate(sent.begin(), sent.end(), int64_t{0}); }

ExpertExchange::ExpertExchange(Communicator& group, int64_t num_experts)
    : group_(group), num_experts_(num_experts), deadline_(Deadline::at(Deadline::Clock::time_point())) {}

Status ExpertExchange::plan(std::span<const int32_t> expert_offsets, ExchangePlan& plan) {
  const auto experts = static_cast<size_t>(num_experts_);
  const auto num_places = static_cast<size_t>(places());
  const auto held = static_cast<size_t>(num_held());
  const auto first = static_cast<size_t>(first_held());
  my_counts_.resize(experts);
  counts_.resize(experts * num_places);
  for (size_t e = 0; e < experts; ++e) {
    my_counts_[e] = expert_offsets[e + 1] - expert_offsets[e];
  }
  ACCORD_RETURN_IF_ERROR(group_.all_gather(my_counts_.data(), static_cast<int64_t>(experts * sizeof(int32_t)),
                                           counts_.data(), deadline_));
  // Rows of experts [e, e + held) that have their home at `source`.
  const auto rows_from = [&](size_t source, size_t e) {
    const auto begin = counts_.begin() + static_cast<std::ptrdiff_t>(source * experts + e);
    return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(held), int64_t{0});
  };
  plan.sent.resize(num_places);
  plan.arrived.resize(num_places);
  plan.most_arrived = 0;
  for (size_t p = 0; p < num_places; ++p) {
    plan.sent[p] = rows_from(static_cast<size_t>(place()), p * held);
    plan.arrived[p] = rows_from(p, first);
    int64_t at_p = 0;
    for (size_t source = 0; source < num_places; ++source) at_p += rows_from(source, p * held);
    plan.most_arrived = std::max(plan.most_arrived, at_p);
  }
  // `next` [E]: the arrival row that a source's next expert begins with.
  std::vector<int32_t> next(num_places, 0);
  for (size_t p = 1; p < num_places; ++p) {
    next[p] = next[p - 1] + static_cast<int32_t>(plan.arrived[p - 1]);
  }
  plan.order.clear();
  plan.expert_offsets.assign(1, 0);
  for (size_t e = first; e < first + held; ++e) {
    for (size_t source = 0; source < num_places; ++source) {
      for (int32_t i = 0; i < counts_[source * experts + e]; ++i) plan.order.push_back(next[source]++);
    }
    plan.expert_offsets.push_back(static_cast<int32_t>(plan.order.size()));
  }
  return absl::OkStatus();
}

Status ExpertExchange::move(std::span<const int64_t> out_rows, const void* out,
                            std::span<const int64_t> in_rows, void* in, int64_t row_bytes) {
  out_bytes_.assign(out_rows.begin(), out_rows.end());
  in_bytes_.assign(in_rows.begin(), in_rows.end());
  for (int64_t& bytes : out_bytes_) bytes *= row_bytes;
  for (int64_t& bytes : in_bytes_) bytes *= row_bytes;
  return group_.all_to_all(out, out_bytes_, in, in_bytes_, deadline_);
}

Status ExpertExchange::to_owners(const ExchangePlan& plan, const void* home_order, int64_t row_bytes,
                                 void* arrival_order) {
  return move(plan.sent, home_order, plan.arrived, arrival_order, row_bytes);
}

Status ExpertExchange::to_homes(const ExchangePlan& plan, const void* arrival_order, int64_t row_bytes,
                                void* home_order) {
  return move(plan.arrived, arrival_order, plan.sent, home_order, row_bytes);
}

StatusOr<int64_t> ExpertExchange::largest(int64_t value) {
  std::vector<int64_t> all(static_cast<size_t>(places()));
  ACCORD_RETURN_IF_ERROR(group_.all_gather(&value, sizeof(value), all.data(), deadline_));
  return *std::max_element(all.begin(), all.end());
}

void to_arrival_order(const ExchangePlan& plan, const void* owner_order, int64_t row_bytes, int64_t begin,
                      int64_t end, void* arrival_order) {
  const auto* in = static_cast<const std::byte*>(owner_order);
  auto* out = static_cast<std::byte*>(arrival_order);
  for (int64_t i = begin; i < end; ++i) {
    std::memcpy(out + plan.order[static_cast<size_t>(i)] * row_bytes, in + i * row_bytes,
                static_cast<size_t>(row_bytes));
  }
}

}  // namespace accord::model
