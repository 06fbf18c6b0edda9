#include "trainer/exchange.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/buffer.hpp"

namespace accord::trainer {

namespace {

constexpr int64_t kBlock = 1 << 14;  // elements per task

using MasterOf = std::function<std::span<const float>(int64_t parameter)>;

void for_blocks(ThreadPool& pool, int64_t total, const std::function<void(int64_t, int64_t)>& body) {
  pool.parallel_for((total + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t begin = block * kBlock;
    body(begin, std::min(kBlock, total - begin));
  });
}

// bf16(master) of elements [begin, begin + count) of the own section of `layout`, padding 0.
void read_own_section(const MasterOf& master_of, const ShardLayout& layout, int64_t begin, int64_t count,
                      BF16* out) {
  std::fill_n(out, count, BF16{});
  const std::span<const int64_t> own = layout.own_parameters();
  const auto after = std::upper_bound(own.begin(), own.end(), begin, [&](int64_t at, int64_t parameter) {
    return at < layout.offset_in_section(parameter);
  });
  for (auto it = after == own.begin() ? after : after - 1; it != own.end(); ++it) {
    const std::span<const float> master = master_of(*it);
    const int64_t at = layout.offset_in_section(*it);
    if (at >= begin + count) break;
    const int64_t first = std::max(begin, at);
    const int64_t last = std::min(begin + count, at + static_cast<int64_t>(master.size()));
    for (int64_t i = first; i < last; ++i) out[i - begin] = to_bf16(master[static_cast<size_t>(i - at)]);
  }
}

}  // namespace

int64_t ExchangeRounds::elements(int64_t length, int64_t round) const {
  return std::clamp<int64_t>(length - round * chunk, 0, chunk);
}

StatusOr<ExchangeRounds> plan_rounds(const ShardLayout& layout, Communicator& group, int64_t element_bytes,
                                     int64_t round_bytes, Deadline deadline) {
  const int32_t rank = group.rank();
  int64_t longest = 0;
  for (int32_t r = 0; r < group.size(); ++r) {
    if (r != rank) longest = std::max({longest, layout.section(r, rank), layout.section(rank, r)});
  }
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  ACCORD_RETURN_IF_ERROR(group.all_gather(&longest, sizeof(longest), all.data(), deadline));
  longest = *std::max_element(all.begin(), all.end());
  const int64_t chunk = std::max<int64_t>(round_bytes / element_bytes / group.size(), 1);
  return ExchangeRounds{chunk, (longest + chunk - 1) / chunk};
}

Status reduce_gradients(const ShardLayout& layout, float* gradients, Communicator& group, ThreadPool& pool,
                        Deadline deadline, int64_t round_bytes) {
  const int32_t rank = group.rank();
  const size_t size = static_cast<size_t>(group.size());
  ACCORD_ASSIGN_OR_RETURN(const ExchangeRounds rounds,
                          plan_rounds(layout, group, sizeof(float), round_bytes, deadline));
  float* const own = gradients + layout.section_begin(rank);
  std::vector<int64_t> in_bytes(size), out_bytes(size), counts(size);
  std::vector<const float*> from(size);
  Buffer sent, received;
  sent.ensure(size * static_cast<size_t>(rounds.chunk) * sizeof(float));
  received.ensure(size * static_cast<size_t>(rounds.chunk) * sizeof(float));
  for (int64_t round = 0; round < rounds.count; ++round) {
    const int64_t begin = round * rounds.chunk;
    float* out = sent.as<float>();
    const float* in = received.as<float>();
    for (int32_t r = 0; r < group.size(); ++r) {
      const size_t i = static_cast<size_t>(r);
      const int64_t outgoing = r == rank ? 0 : rounds.elements(layout.section(r, rank), round);
      std::copy_n(gradients + layout.section_begin(r) + begin, outgoing, out);
      out += outgoing;
      in_bytes[i] = outgoing * static_cast<int64_t>(sizeof(float));
      counts[i] = rounds.elements(layout.section(rank, r), round);
      from[i] = r == rank ? own + begin : in;
      const int64_t incoming = r == rank ? 0 : counts[i];
      in += incoming;
      out_bytes[i] = incoming * static_cast<int64_t>(sizeof(float));
    }
    ACCORD_RETURN_IF_ERROR(group.all_to_all(sent.data(), in_bytes, received.data(), out_bytes, deadline));
    for_blocks(pool, counts[static_cast<size_t>(rank)], [&](int64_t first, int64_t count) {
      float sum[kBlock] = {};
      for (size_t r = 0; r < size; ++r) {
        const int64_t n = std::clamp<int64_t>(counts[r] - first, 0, count);
        for (int64_t i = 0; i < n; ++i) sum[i] += from[r][first + i];
      }
      std::copy_n(sum, count, own + begin + first);
    });
  }
  return absl::OkStatus();
}

Status share_originals(const ShardLayout& layout, BF16* originals, const MasterOf& master,
                       Communicator& group, ThreadPool& pool, Deadline deadline, int64_t round_bytes) {
  const int32_t rank = group.rank();
  const size_t size = static_cast<size_t>(group.size());
  ACCORD_ASSIGN_OR_RETURN(const ExchangeRounds rounds,
                          plan_rounds(layout, group, sizeof(BF16), round_bytes, deadline));
  std::vector<int64_t> in_bytes(size), out_bytes(size);
  Buffer sent, received, own;
  own.ensure(static_cast<size_t>(rounds.chunk) * sizeof(BF16));
  sent.ensure(size * static_cast<size_t>(rounds.chunk) * sizeof(BF16));
  received.ensure(size * static_cast<size_t>(rounds.chunk) * sizeof(BF16));
  for (int64_t round = 0; round < rounds.count; ++round) {
    const int64_t begin = round * rounds.chunk;
    const int64_t mine = rounds.elements(layout.section(rank, rank), round);
    for_blocks(pool, mine, [&](int64_t first, int64_t count) {
      read_own_section(master, layout, begin + first, count, own.as<BF16>() + first);
    });
    BF16* out = sent.as<BF16>();
    for (int32_t r = 0; r < group.size(); ++r) {
      const size_t i = static_cast<size_t>(r);
      const int64_t outgoing = r == rank ? 0 : rounds.elements(layout.section(rank, r), round);
      out = std::copy_n(own.as<BF16>(), outgoing, out);
      in_bytes[i] = outgoing * static_cast<int64_t>(sizeof(BF16));
      const int64_t incoming = r == rank ? 0 : rounds.elements(layout.section(r, rank), round);
      out_bytes[i] = incoming * static_cast<int64_t>(sizeof(BF16));
    }
    ACCORD_RETURN_IF_ERROR(group.all_to_all(sent.data(), in_bytes, received.data(), out_bytes, deadline));
    const BF16* in = received.as<BF16>();
    for (int32_t r = 0; r < group.size(); ++r) {
      const int64_t count = out_bytes[static_cast<size_t>(r)] / static_cast<int64_t>(sizeof(BF16));
      std::copy_n(in, count, originals + layout.section_begin(r) + begin);
      in += count;
    }
  }
  return absl::OkStatus();
}

}  // namespace accord::trainer
