#include "base/expert_ids.hpp"

#include "support/catch.hpp"

namespace accord {

TEST_CASE("expert ids come back as they were stored in one byte or two") {
  for (int64_t experts : {2, 256, 257, 65536}) {
    CAPTURE(experts);
    CHECK(expert_id_bytes(experts) == (experts <= 256 ? 1 : 2));
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 300; ++i) ids.push_back(static_cast<int32_t>(i * 7919 % experts));
    ids.push_back(static_cast<int32_t>(experts - 1));
    const ExpertIds packed = pack_expert_ids(ids, experts);
    CHECK(packed.bytes.size() == ids.size() * expert_id_bytes(experts));
    std::vector<int32_t> back(ids.size());
    load_expert_ids(packed, experts, 0, back);
    CHECK(back == ids);
    std::vector<int32_t> some(5);
    load_expert_ids(packed, experts, 17, some);
    CHECK(some == std::vector<int32_t>(ids.begin() + 17, ids.begin() + 22));
    // In pieces, the second one overlapping the first.
    ExpertIds pieces;
    store_expert_ids(std::span(ids).first(100), experts, 0, pieces);
    store_expert_ids(std::span(ids).subspan(60), experts, 60, pieces);
    CHECK(pieces == packed);
  }
  CHECK(pack_expert_ids(std::vector<int32_t>{0x0102}, 1000).bytes == std::vector<uint8_t>{0x02, 0x01});
}

TEST_CASE("only layers with experts have a place in the routing") {
  ModelConfig config;
  config.layer_is_moe = {false, true, true, false, true};
  config.num_experts_per_token = 4;
  CHECK(num_moe_layers(config) == 3);
  CHECK(moe_slots(config) == std::vector<int64_t>{-1, 0, 1, -1, 2});
  CHECK(routing_width(config) == 12);
  config.layer_is_moe = {false, false};
  CHECK(routing_width(config) == 0);
}

}  // namespace accord
