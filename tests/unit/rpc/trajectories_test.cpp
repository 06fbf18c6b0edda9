// Trajectories cut into chunks and joined again.
#include "rpc/trajectories.hpp"

#include "base/philox.hpp"
#include "support/catch.hpp"

namespace accord::rpc {
namespace {

Sample make_sample(uint32_t index, size_t tokens, size_t ids_per_token) {
  PhiloxStream random(5, index);
  Sample sample;
  sample.key = {7, 9, index};
  sample.weight_version = 6;
  sample.prompt_length = 3;
  sample.finish = index % 2 == 0 ? FinishReason::kStop : FinishReason::kLength;
  for (size_t i = 0; i < tokens; ++i)
    sample.tokens.push_back(static_cast<int32_t>(random.next_below(150000)));
  for (size_t i = 3; i < tokens; ++i) {
    sample.logprobs.push_back(static_cast<float>(random.next_normal()));
    sample.sampling_logprobs.push_back(static_cast<float>(random.next_normal()));
  }
  for (size_t i = 0; i < (tokens - 1) * ids_per_token; ++i) {
    sample.routing.bytes.push_back(static_cast<uint8_t>(random.next_below(128)));
  }
  return sample;
}

void check_equal(const Sample& got, const Sample& want) {
  CHECK(got.key == want.key);
  CHECK(got.weight_version == want.weight_version);
  CHECK(got.prompt_length == want.prompt_length);
  CHECK(got.finish == want.finish);
  CHECK(got.tokens == want.tokens);
  CHECK(got.logprobs == want.logprobs);
  CHECK(got.sampling_logprobs == want.sampling_logprobs);
  CHECK(got.routing == want.routing);
}

std::vector<v1::TrajectoryChunk> cut(const std::vector<Sample>& samples, size_t chunk_bytes) {
  std::vector<v1::TrajectoryChunk> chunks;
  TrajectoryWriter writer(
      [&](const v1::TrajectoryChunk& chunk) {
        chunks.push_back(chunk);
        return true;
      },
      chunk_bytes);
  for (const Sample& sample : samples) CHECK(writer.add(sample));
  CHECK(writer.finish());
  return chunks;
}

}  // namespace

TEST_CASE("trajectories of any size travel in chunks below the limit") {
  std::vector<Sample> samples;
  // 20000 tokens with 48 layers of 8 experts: 7.7 MB, more than a gRPC message may have.
  for (size_t tokens : {4, 900, 20000, 5, 300}) {
    samples.push_back(make_sample(static_cast<uint32_t>(samples.size()), tokens, 48 * 8));
  }
  samples.push_back(make_sample(5, 2000, 0));
  for (size_t limit : {kChunkBytes, size_t{3000}}) {
    CAPTURE(limit);
    const auto chunks = cut(samples, limit);
    CHECK(chunks.size() > 8);
    TrajectoryReader reader;
    for (const v1::TrajectoryChunk& chunk : chunks) {
      CHECK(chunk.ByteSizeLong() <= limit);
      REQUIRE(reader.add(chunk).ok());
    }
    const auto got = reader.finish();
    REQUIRE(got.ok());
    REQUIRE(got->size() == samples.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      CAPTURE(i);
      check_equal((*got)[i], samples[i]);
    }
  }
  // Small ones share a chunk.
  CHECK(cut({samples[0], samples[3], samples[5]}, kChunkBytes).size() == 1);
}

TEST_CASE("pieces that do not fit together are refused") {
  const auto chunks = cut({make_sample(0, 400, 16), make_sample(1, 400, 16)}, 4096);
  REQUIRE(chunks.size() > 2);
  TrajectoryReader cut_off;
  REQUIRE(cut_off.add(chunks[0]).ok());
  CHECK(std::string(message_of(cut_off.finish().status())).find("sample 0 of prompt 9 is not whole") !=
        std::string::npos);
  TrajectoryReader mixed;
  REQUIRE(mixed.add(chunks[0]).ok());
  const Status status = mixed.add(chunks.back());
  CHECK(std::string(message_of(status)).find("a piece of sample 1") != std::string::npos);
}

TEST_CASE("a broken stream ends the writing") {
  int sent = 0;
  TrajectoryWriter writer([&](const v1::TrajectoryChunk&) { return ++sent < 2; }, 4096);
  CHECK_FALSE(writer.add(make_sample(0, 4000, 16)));
  CHECK(sent == 2);
}

}  // namespace accord::rpc
