#pragma once
// The JSON lines that a scorer process reads and writes, one per sample, replies in the order of requests:
//   {"id":7,"index":0,"count":16,"set":"train","step":3,"prompt_id":12,"sample_index":0,"prompt":"...",
//    "messages":[{"role":"user","content":"..."}],"response":"...","label":"34","metadata":{},"truncated":false}
//   {"id":7,"score":1.0,"pred":"34","extra":{"tool":"sympy"}}
#include <cstdint>
#include <string>
#include <string_view>

#include "reward/batch_scorer.hpp"

namespace accord::reward {

// With its line feed. `index` of `count`: the place in the batch. Broken UTF-8 becomes U+FFFD.
std::string request_line(const ScoreRequest& request, uint64_t id, size_t index, size_t count);

// A data error that quotes the line: no JSON, another id (a reply that is missing, superfluous or out of
// order), no finite score, an unknown member, a wrong type. pred: text, a number or null; extra: an object.
StatusOr<Reward> parse_reply(std::string_view line, uint64_t id);

// `text` with broken UTF-8 replaced by U+FFFD.
std::string whole_characters(std::string_view text);

// "" or a JSON object, as a scorer's `extra` must be.
Status check_extra(std::string_view extra);

}  // namespace accord::reward
