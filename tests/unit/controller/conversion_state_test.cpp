// conversion.state: what is written is read back; anything else is refused with its path.
#include "controller/conversion_state.hpp"

#include <string>

#include "support/catch.hpp"

namespace accord::controller {

TEST_CASE("the state of a conversion is read back as it was written") {
  ConversionState state;
  state.source = "0123";
  state.plan = "4567";
  state.shards["model-00001-of-00002.safetensors"] = {123, "89ab"};
  state.shards["model-00002-of-00002.safetensors"] = {0, ""};
  const auto read = parse_conversion_state(to_json(state), "conversion.state");
  REQUIRE(read.ok());
  CHECK(read->source == state.source);
  CHECK(read->plan == state.plan);
  CHECK(read->shards == state.shards);
}

TEST_CASE("a state of a conversion that is damaged or of another version is refused") {
  for (const char* text :
       {"", "0123456789abcdef0123456789abcdef\n", "[]", "{}",
        R"({"version":2,"source":"a","plan":"b","shards":{}})",
        R"({"version":1,"source":1,"plan":"b","shards":{}})",
        R"({"version":1,"source":"a","plan":"b","shards":[]})",
        R"({"version":1,"source":"a","plan":"b","shards":{"x":{"bytes":"1","digest":"c"}}})",
        R"({"version":1,"source":"a","plan":"b","shards":{"x":{"bytes":1}}})",
        R"({"version":1,"source":"a","plan":"b","shards":{"x":7}})"}) {
    INFO(text);
    const auto read = parse_conversion_state(text, "DST.partial/conversion.state");
    REQUIRE_FALSE(read.ok());
    CHECK(exit_code(read.status()) == ExitCode::kBadData);
    const std::string message(message_of(read.status()));
    CHECK(message.find("DST.partial/conversion.state") == 0);
    CHECK(message.find("remove the directory") != std::string::npos);
  }
}

}  // namespace accord::controller
