#include <algorithm>
#include <vector>

#include "device/collectives.hpp"
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"
#include "trainer/device_exchange.hpp"
#include "trainer/exchange.hpp"

namespace accord::trainer {

namespace cuda = kernels::cuda;

namespace {

using Parts = std::vector<DeviceCollectives::Part>;

template <class T>
DeviceCollectives::Part part(int32_t rank, T* data, int64_t count) {
  return {rank, data, count * static_cast<int64_t>(sizeof(T))};
}

// Parts start at multiples of this many elements, so that sums work on vectors.
constexpr int64_t kAlignment = 64;

// The most bytes up to `round_bytes` of which every rank's part is a multiple of kAlignment.
int64_t aligned_round(int64_t round_bytes, int64_t ranks, int64_t element_bytes) {
  const int64_t unit = ranks * element_bytes * kAlignment;
  return std::max<int64_t>(round_bytes / unit, 1) * unit;
}

}  // namespace

bool DeviceExchange::serves(Communicator& group) {
  return group.device_collectives() != nullptr && group.size() <= cuda::OrderedParts::kMost;
}

Status DeviceExchange::reduce_gradients(const ShardLayout& layout, float* gradients, Communicator& group,
                                        Deadline deadline, int64_t round_bytes) {
  DeviceCollectives& collectives = *group.device_collectives();
  const int32_t rank = group.rank();
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_ASSIGN_OR_RETURN(const ExchangeRounds rounds,
                          plan_rounds(layout, group, sizeof(float),
                                      aligned_round(round_bytes, group.size(), sizeof(float)), deadline));
  const int64_t slot = rounds.chunk;
  ACCORD_RETURN_IF_ERROR(buffer_.ensure(device_, static_cast<size_t>(slot * group.size()) * sizeof(float)));
  float* const own = gradients + layout.section_begin(rank);
  for (int64_t round = 0; round < rounds.count; ++round) {
    const int64_t begin = round * rounds.chunk;
    Parts out;
    Parts in;
    cuda::OrderedParts sum;
    for (int32_t r = 0; r < group.size(); ++r) {
      const int64_t count = rounds.elements(layout.section(rank, r), round);
      float* from = own + begin;
      if (r != rank) {
        from = buffer_.as<float>() + r * slot;
        out.push_back(part(r, gradients + layout.section_begin(r) + begin,
                           rounds.elements(layout.section(r, rank), round)));
        in.push_back(part(r, from, count));
      }
      sum.data[sum.num] = from;
      sum.count[sum.num++] = count;
    }
    ACCORD_RETURN_IF_ERROR(collectives.exchange(out, in, stream_, deadline));
    cuda::sum_in_order(sum, own + begin, stream_.handle());
  }
  return collectives.finish(stream_, deadline);
}

Status DeviceExchange::share_originals(const ShardLayout& layout, BF16* originals,
                                       const std::function<const float*(int64_t parameter)>& master,
                                       const std::function<int64_t(int64_t parameter)>& numel,
                                       Communicator& group, Deadline deadline, int64_t round_bytes) {
  DeviceCollectives& collectives = *group.device_collectives();
  const int32_t rank = group.rank();
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_ASSIGN_OR_RETURN(const ExchangeRounds rounds,
                          plan_rounds(layout, group, sizeof(BF16),
                                      aligned_round(round_bytes, group.size(), sizeof(BF16)), deadline));
  const size_t chunk_bytes = static_cast<size_t>(rounds.chunk) * sizeof(BF16);
  ACCORD_RETURN_IF_ERROR(buffer_.ensure(device_, chunk_bytes));
  BF16* const own = buffer_.as<BF16>();
  for (int64_t round = 0; round < rounds.count; ++round) {
    const int64_t begin = round * rounds.chunk;
    const int64_t end = begin + rounds.elements(layout.section(rank, rank), round);
    ACCORD_RETURN_IF_ERROR(stream_.fill(own, 0, chunk_bytes));  // padding
    for (const int64_t parameter : layout.own_parameters()) {
      const int64_t at = layout.offset_in_section(parameter);
      const int64_t first = std::max(begin, at);
      const int64_t last = std::min(end, at + numel(parameter));
      if (first < last) {
        cuda::round_to_bf16(master(parameter) + (first - at), last - first, own + (first - begin),
                            stream_.handle());
      }
    }
    Parts out;
    Parts in;
    for (int32_t r = 0; r < group.size(); ++r) {
      if (r == rank) continue;
      out.push_back(part(r, own, rounds.elements(layout.section(rank, r), round)));
      in.push_back(part(r, originals + layout.section_begin(r) + begin,
                        rounds.elements(layout.section(r, rank), round)));
    }
    ACCORD_RETURN_IF_ERROR(collectives.exchange(out, in, stream_, deadline));
  }
  return collectives.finish(stream_, deadline);
}

}  // namespace accord::trainer
