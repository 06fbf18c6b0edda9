#include "reward/score_lines.hpp"

#include <cmath>

#include "base/strict_json.hpp"

namespace accord::reward {
namespace {

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

StatusOr<Reward> read_reply(const Json& reply, uint64_t id) {
  if (!reply.is_object()) {
    return data_error("a reply must be an object, not {}", kind_of(reply));
  }
  Reward reward;
  bool has_id = false;
  bool has_score = false;
  for (const auto& [name, value] : reply.items()) {
    if (name == "id") {
      has_id = value.is_number_unsigned() && value.get<uint64_t>() == id;
      if (!has_id) {
        return data_error("a reply to id {} was due, not to {} (one reply per request, in their order)", id,
                          printable(dump(value)));
      }
    } else if (name == "score") {
      has_score = value.is_number() && std::isfinite(value.get<double>());
      if (!has_score) {
        return data_error("'score' must be a finite number, not {}", printable(dump(value)));
      }
      reward.score = value.get<double>();
    } else if (name == "pred") {
      if (value.is_string()) {
        reward.pred = value.get<std::string>();
      } else if (value.is_number()) {
        reward.pred = dump(value);
      } else if (!value.is_null()) {
        return data_error("'pred' must be a text, a number or null, not {}", kind_of(value));
      }
    } else if (name == "extra") {
      if (!value.is_object() && !value.is_null()) {
        return data_error("'extra' must be an object, not {}", kind_of(value));
      }
      reward.extra = value.is_null() ? "" : dump(value);
    } else {
      return data_error("a reply has id, score, pred and extra, not '{}' (put it into extra)",
                        printable(name));
    }
  }
  if (!has_id || !has_score) {
    return data_error("a reply needs '{}'", has_id ? "score" : "id");
  }
  return reward;
}

}  // namespace

std::string request_line(const ScoreRequest& request, uint64_t id, size_t index, size_t count) {
  Json line;
  line["id"] = id;
  line["index"] = index;
  line["count"] = count;
  line["set"] = request.set;
  line["step"] = request.step;
  line["prompt_id"] = request.prompt_id;
  line["sample_index"] = request.sample_index;
  line["prompt"] = request.prompt;
  line["messages"] = Json::parse(request.messages);
  line["response"] = request.response;
  line["label"] = request.label;
  line["metadata"] = Json::parse(request.metadata);
  line["truncated"] = request.truncated;
  return dump(line) + "\n";
}

StatusOr<Reward> parse_reply(std::string_view line, uint64_t id) {
  const StatusOr<Json> reply = parse_json(line);
  const StatusOr<Reward> reward = reply.ok() ? read_reply(*reply, id) : reply.status();
  if (!reward.ok()) {
    return data_error("the scorer wrote the line '{}' to its standard output: {}", printable(line),
                      message_of(reward.status()));
  }
  return reward;
}

std::string whole_characters(std::string_view text) {
  return Json::parse(dump(Json(text))).get<std::string>();
}

Status check_extra(std::string_view extra) {
  if (extra.empty()) {
    return absl::OkStatus();
  }
  ACCORD_ASSIGN_OR_RETURN(const Json json, parse_json(extra));
  return json.is_object() ? absl::OkStatus()
                          : data_error("must be a JSON object or empty, not {}", kind_of(json));
}

}  // namespace accord::reward
