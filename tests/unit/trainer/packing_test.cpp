#include "trainer/packing.hpp"

#include <algorithm>
#include <vector>

#include "base/philox.hpp"
#include "support/catch.hpp"

namespace accord::trainer {

TEST_CASE("packing is first-fit decreasing with ascending members") {
  const std::vector<int64_t> lengths{3, 7, 5, 2, 7, 12};
  const MicroBatchPlan plan = pack_sequences(lengths, 10);
  // Longest first: 12 alone; 7 (1), 7 (4), 5 (2), then 3 (0) joins 1, 2 (3) joins 4.
  const MicroBatchPlan expected{{0, 1}, {2}, {3, 4}, {5}};
  CHECK(plan == expected);
}

TEST_CASE("every sequence is packed once and no budget is exceeded") {
  PhiloxStream random(7, 1);
  for (int round = 0; round < 20; ++round) {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 50; ++i) lengths.push_back(1 + static_cast<int64_t>(random.next_below(40)));
    std::vector<int> seen(lengths.size());
    for (const auto& members : pack_sequences(lengths, 32)) {
      int64_t total = 0;
      for (int32_t m : members) {
        ++seen[static_cast<size_t>(m)];
        total += lengths[static_cast<size_t>(m)];
      }
      CHECK(std::is_sorted(members.begin(), members.end()));
      CHECK((total <= 32 || members.size() == 1));
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

TEST_CASE("a packed batch lays sequences end to end") {
  std::vector<int32_t> a(20), b{5, 6, 7};
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int32_t>(100 + i);
  PackedBatch packed;
  packed.build(std::vector<Sequence>{{a, 17}, {b, 1}});
  const model::Batch batch = packed.batch();
  REQUIRE(batch.num_rows() == 21);  // the last token of each sequence is predicted, not fed
  REQUIRE(batch.segments.size() == 2);
  CHECK(batch.segments[1].row_begin == 19);
  CHECK(batch.segments[1].num_rows == 2);
  CHECK(batch.segments[0].pages[0] == 0);
  CHECK(batch.segments[0].pages[1] == model::kPageSize);
  CHECK(batch.segments[1].pages[0] == 19);
  CHECK(batch.positions[18] == 18);
  CHECK(batch.positions[19] == 0);
  CHECK(batch.kv_rows[20] == 20);
  const std::vector<int32_t> rows(packed.response_rows().begin(), packed.response_rows().end());
  const std::vector<int32_t> tokens(packed.response_tokens().begin(), packed.response_tokens().end());
  CHECK(rows == std::vector<int32_t>{16, 17, 18, 19, 20});
  CHECK(tokens == std::vector<int32_t>{117, 118, 119, 6, 7});
}

}  // namespace accord::trainer
