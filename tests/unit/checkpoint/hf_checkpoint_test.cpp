#include "checkpoint/hf_checkpoint.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/init_model.hpp"
#include "support/catch.hpp"
#include "temp_dir.hpp"

using namespace accord;
using namespace accord::checkpoint;
namespace fs = std::filesystem;

namespace {

std::string golden(const std::string& model) { return std::string(ACCORD_TEST_DATA) + "/hf/" + model; }

// The tensors of a golden model, to be altered and written elsewhere.
struct Model {
  explicit Model(const std::string& name) {
    auto file = SafetensorsFile::open(golden(name) + "/model.safetensors");
    REQUIRE(file.ok());
    for (const TensorInfo& tensor : file->tensors()) {
      tensors[tensor.name] = {
          tensor, std::string(reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes))};
    }
    config = slurp(golden(name) + "/config.json");
  }
  struct Tensor {
    TensorSpec spec;
    std::string bytes;
  };
  void write_file(const std::string& path, const std::vector<std::string>& names) const {
    std::vector<TensorData> data;
    for (const std::string& name : names) {
      data.push_back({tensors.at(name).spec, tensors.at(name).bytes.data()});
      data.back().name = name;
    }
    REQUIRE(write_safetensors(path, data, {{"format", "pt"}}).ok());
  }
  void write(const std::string& dir) const {
    fs::create_directories(dir);
    spill(dir + "/config.json", config);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) {
      names.push_back(name);
    }
    write_file(dir + "/model.safetensors", names);
  }
  std::map<std::string, Tensor> tensors;
  std::string config;
};

std::string refusal(const std::string& dir) {
  const auto checkpoint = HfCheckpoint::open(dir);
  REQUIRE_FALSE(checkpoint.ok());
  return std::string(message_of(checkpoint.status()));
}

void has(const std::string& text, const std::string& part) {
  INFO(text << "\n  lacks: " << part);
  CHECK(text.find(part) != std::string::npos);
}

std::vector<BF16> read(const HfCheckpoint& checkpoint, const ParamSpec& spec) {
  std::vector<BF16> values(static_cast<size_t>(spec.numel()));
  REQUIRE(checkpoint.read_bf16(spec.name, values).ok());
  return values;
}

bool same_weights(const HfCheckpoint& a, const HfCheckpoint& b) {
  for (const ParamSpec& spec : a.specs()) {
    const auto x = read(a, spec);
    const auto y = read(b, spec);
    if (std::memcmp(x.data(), y.data(), x.size() * sizeof(BF16)) != 0) return false;
  }
  return true;
}

// All values of one parameter.
using Bf16Provider = std::function<StatusOr<std::span<const BF16>>(const ParamSpec& parameter)>;

Bf16Provider provider_of(const HfCheckpoint& checkpoint, std::vector<BF16>& memory) {
  return [&](const ParamSpec& spec) -> StatusOr<std::span<const BF16>> {
    memory = read(checkpoint, spec);
    return std::span<const BF16>(memory);
  };
}

Status write_hf_checkpoint(const std::string& dir, const HfConfig& config, const Bf16Provider& provide,
                           const HfWriteOptions& options = {}) {
  ACCORD_ASSIGN_OR_RETURN(const std::string config_json, config_json_to_write(config, dir + "/config.json"));
  const std::string generation_json = generation_config_json_to_write(config);
  const std::vector<ParamSpec> parameters = parameter_specs(config.model);
  std::vector<TensorSpec> tensors;
  tensors.reserve(parameters.size());
  for (const ParamSpec& parameter : parameters) {
    tensors.push_back({parameter.name, Dtype::kBF16, parameter.shape});
  }
  size_t next = 0;  // tensors are produced in the order given
  const auto produce = [&](const TensorSpec&, const ByteSink& sink) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const std::span<const BF16> values, provide(parameters[next++]));
    return sink(values.data(), values.size_bytes());
  };
  return write_hf_directory(dir, config_json, generation_json, tensors, produce, options);
}

}  // namespace

TEST_CASE("the golden models open, and every parameter has its bytes") {
  for (const char* name : {"qwen3_moe", "qwen3_dense_tied", "llama_tied"}) {
    const auto checkpoint = HfCheckpoint::open(golden(name));
    INFO(message_of(checkpoint.status()));
    REQUIRE(checkpoint.ok());
    const Model model(name);
    CHECK(checkpoint->specs().size() == model.tensors.size());
    for (const ParamSpec& spec : checkpoint->specs()) {
      const auto values = read(*checkpoint, spec);
      CHECK(std::memcmp(values.data(), model.tensors.at(spec.name).bytes.data(), values.size() * 2) == 0);
      std::vector<float> wide(values.size());
      REQUIRE(checkpoint->read_f32(spec.name, wide).ok());
      CHECK(to_bf16(wide.back()).bits == values.back().bits);
      CHECK(*checkpoint->dtype(spec.name) == Dtype::kBF16);
    }
  }
}

TEST_CASE("parts of a parameter can be read, and no more than it has") {
  const auto checkpoint = HfCheckpoint::open(golden("llama_tied"));
  REQUIRE(checkpoint.ok());
  std::vector<float> all(320 * 64);
  std::vector<float> row(64);
  REQUIRE(checkpoint->read_f32("model.embed_tokens.weight", all).ok());
  REQUIRE(checkpoint->read_f32("model.embed_tokens.weight", 319 * 64, row).ok());
  CHECK(std::memcmp(row.data(), all.data() + 319 * 64, 64 * 4) == 0);
  CHECK_FALSE(checkpoint->read_f32("model.embed_tokens.weight", 319 * 64 + 1, row).ok());
  CHECK_FALSE(checkpoint->read_f32("model.embed_tokens.weight", -1, row).ok());
  CHECK_FALSE(checkpoint->read_f32("model.embed_tokens.weight", row).ok());
  CHECK_FALSE(checkpoint->read_f32("lm_head.weight", row).ok());
}

TEST_CASE("missing, extra and misshapen tensors are listed in one error") {
  TempDir dir;
  Model model("qwen3_moe");
  auto node = model.tensors.extract("model.layers.1.self_attn.q_proj.weight");
  node.key() = "model.layers.1.self_attn.query.weight";
  model.tensors.insert(std::move(node));
  model.tensors["model.norm.weight"].spec.shape = {8, 8};
  model.write(dir / "a");
  const std::string message = refusal(dir / "a");
  has(message, "1 missing: model.layers.1.self_attn.q_proj.weight");
  has(message, "1 unexpected: model.layers.1.self_attn.query.weight");
  has(message, "1 wrong: model.norm.weight is BF16 [8, 8], expected [64]");
  has(message, "use the config.json that belongs to");

  Model integers("llama_tied");
  integers.tensors["model.norm.weight"].spec.dtype = Dtype::kI16;
  integers.write(dir / "b");
  has(refusal(dir / "b"), "model.norm.weight is I16 [64]");
}

TEST_CASE("a tied head may be stored when it equals the embedding, inverse frequencies are passed over") {
  TempDir dir;
  Model model("llama_tied");
  model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"];
  model.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{"", Dtype::kF32, {1}},
                                                                   std::string(4, '\0')};
  model.write(dir / "a");
  CHECK(HfCheckpoint::open(dir / "a").ok());
  model.tensors["lm_head.weight"].bytes[7] ^= 1;
  model.write(dir / "b");
  has(refusal(dir / "b"), "'lm_head.weight' differs from 'model.embed_tokens.weight'");
}

TEST_CASE("fused experts are read as the single ones they stand for") {
  TempDir dir;
  const auto plain = HfCheckpoint::open(golden("qwen3_moe"));
  REQUIRE(plain.ok());
  Model model("qwen3_moe");
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    Model::Tensor gate_up{{"", Dtype::kBF16, {8, 64, 64}}, ""};
    Model::Tensor down{{"", Dtype::kBF16, {8, 64, 32}}, ""};
    for (int expert = 0; expert < 8; ++expert) {
      const auto take = [&](const char* which) {
        const std::string name = fmt::format("{}{}.{}.weight", prefix, expert, which);
        const std::string bytes = model.tensors.at(name).bytes;
        model.tensors.erase(name);
        return bytes;
      };
      gate_up.bytes += take("gate_proj");
      gate_up.bytes += take("up_proj");
      down.bytes += take("down_proj");
    }
    model.tensors[prefix + "gate_up_proj"] = gate_up;
    model.tensors[prefix + "down_proj"] = down;
  }
  model.write(dir / "a");
  const auto fused = HfCheckpoint::open(dir / "a");
  INFO(message_of(fused.status()));
  REQUIRE(fused.ok());
  CHECK(same_weights(*plain, *fused));

  model.tensors["model.layers.2.mlp.experts.down_proj"].spec.shape = {8, 32, 64};
  model.write(dir / "b");
  has(refusal(dir / "b"),
      "1 wrong: model.layers.2.mlp.experts.down_proj is BF16 [8, 32, 64], expected [8, 64, 32]");
}

TEST_CASE("other floating dtypes are widened and rounded") {
  TempDir dir;
  Model model("llama_tied");
  auto& norm = model.tensors["model.norm.weight"];
  std::vector<float> values(64, 1.00390625F);  // halfway between two bf16 values
  values[1] = 0.3F;
  norm.spec.dtype = Dtype::kF32;
  norm.bytes.assign(reinterpret_cast<const char*>(values.data()), 256);
  model.write(dir / "a");
  const auto checkpoint = HfCheckpoint::open(dir / "a");
  REQUIRE(checkpoint.ok());
  std::vector<float> wide(64);
  std::vector<BF16> narrow(64);
  REQUIRE(checkpoint->read_f32("model.norm.weight", wide).ok());
  REQUIRE(checkpoint->read_bf16("model.norm.weight", narrow).ok());
  CHECK(wide == values);
  CHECK(narrow[0].bits == 0x3f80);
  CHECK(to_float(narrow[1]) == 0.30078125F);
}

TEST_CASE("shards are cut where asked, and read back as the same model") {
  TempDir dir;
  const auto original = HfCheckpoint::open(golden("qwen3_moe"));
  REQUIRE(original.ok());
  std::vector<BF16> memory;
  HfWriteOptions options;
  options.max_shard_bytes = 100'000;
  fs::create_directories(dir / "tok");
  spill(dir / "tok/tokenizer.json", "{\"t\":1}");
  spill(dir / "tok/chat_template.jinja", "x");
  spill(dir / "tok/unrelated", "y");
  options.tokenizer_dir = dir / "tok";
  REQUIRE(
      write_hf_checkpoint(dir / "a", original->hf_config(), provider_of(*original, memory), options).ok());
  CHECK(fs::exists(dir / "a/model-00001-of-00006.safetensors"));
  CHECK(fs::exists(dir / "a/model-00006-of-00006.safetensors"));
  CHECK(fs::exists(dir / "a/model.safetensors.index.json"));
  CHECK_FALSE(fs::exists(dir / "a/model.safetensors"));
  CHECK(slurp(dir / "a/tokenizer.json") == "{\"t\":1}");
  CHECK(slurp(dir / "a/chat_template.jinja") == "x");
  CHECK_FALSE(fs::exists(dir / "a/unrelated"));
  CHECK(slurp(dir / "a/generation_config.json").find("\"eos_token_id\": 2") != std::string::npos);
  const auto sharded = HfCheckpoint::open(dir / "a");
  INFO(message_of(sharded.status()));
  REQUIRE(sharded.ok());
  CHECK(sharded->config() == original->config());
  CHECK(same_weights(*original, *sharded));

  // Once more in one file.
  REQUIRE(write_hf_checkpoint(dir / "b", original->hf_config(), provider_of(*original, memory)).ok());
  const auto single = HfCheckpoint::open(dir / "b");
  REQUIRE(single.ok());
  CHECK(same_weights(*original, *single));
  CHECK(slurp(dir / "b/config.json") == slurp(dir / "a/config.json"));

  const Status again = write_hf_checkpoint(dir / "b", original->hf_config(), provider_of(*original, memory));
  CHECK(exit_code(again) == ExitCode::kUsage);
}

TEST_CASE("an index must agree with its shards") {
  TempDir dir;
  Model model("llama_tied");
  std::vector<std::string> first, second;
  std::string map;
  for (const auto& [name, tensor] : model.tensors) {
    (first.size() < 10 ? first : second).push_back(name);
    map +=
        fmt::format("{}\"{}\":\"{}.safetensors\"", map.empty() ? "" : ",", name, second.empty() ? "x" : "y");
  }
  const auto write = [&](const std::string& name, const std::string& weight_map) {
    fs::create_directories(dir / name);
    spill(dir / (name + "/config.json"), model.config);
    model.write_file(dir / (name + "/x.safetensors"), first);
    model.write_file(dir / (name + "/y.safetensors"), second);
    spill(dir / (name + "/model.safetensors.index.json"), "{\"weight_map\":{" + weight_map + "}}");
    return dir / name;
  };
  const std::string good = write("good", map);
  CHECK(HfCheckpoint::open(good).ok());

  has(refusal(write("unknown", map + ",\"ghost\":\"x.safetensors\"")),
      "tensor 'ghost' is not in x.safetensors");
  std::string moved = map;
  moved.replace(moved.find("x.safetensors"), 1, "y");
  has(refusal(write("moved", moved)), "is not in y.safetensors, where the index says it is");
  has(refusal(write("unlisted", map.substr(map.find(',') + 1))), "is not in the index");
  has(refusal(write("absent", map + ",\"ghost\":\"z.safetensors\"")), "z.safetensors: cannot open");
  for (const char* bad :
       {"../x.safetensors", "/etc/x.safetensors", "x.bin", ".safetensors", "a/b.safetensors"}) {
    has(refusal(write("path", map + fmt::format(",\"ghost\":\"{}\"", bad))), "not the plain name");
  }
  has(refusal(write("twice", map + "," + map)), "appears twice");
  has(refusal(write("empty", "")), "weight_map is empty");
  const std::string both = write("both", map);
  model.write_file(both + "/model.safetensors", first);
  has(refusal(both), "holds both model.safetensors and model.safetensors.index.json");
  const std::string duplicate = write("duplicate", map);
  second.push_back(first.front());
  model.write_file(duplicate + "/y.safetensors", second);
  has(refusal(duplicate), "lies in");
  fs::create_directories(dir / "nothing");
  spill(dir / "nothing/config.json", model.config);
  has(refusal(dir / "nothing"), "has neither model.safetensors nor");
  has(refusal(dir / "nowhere"), "config.json: cannot open");
}

TEST_CASE("a producer that fails or stops short leaves no checkpoint") {
  TempDir dir;
  const auto original = HfCheckpoint::open(golden("llama_tied"));
  REQUIRE(original.ok());
  int calls = 0;
  const Status failed = write_hf_checkpoint(
      dir / "a", original->hf_config(), [&](const ParamSpec& spec) -> StatusOr<std::span<const BF16>> {
        static const std::vector<BF16> values(320 * 64);
        if (++calls == 5) return data_error("no more");
        return std::span<const BF16>(values).first(static_cast<size_t>(spec.numel()));
      });
  CHECK(message_of(failed) == "no more");
  CHECK(fs::is_empty(dir / "a"));
  const Status short_one = write_hf_checkpoint(
      dir / "b", original->hf_config(),
      [&](const ParamSpec&) -> StatusOr<std::span<const BF16>> { return std::span<const BF16>(); });
  has(std::string(message_of(short_one)), "has 0 of its");
}

TEST_CASE("a random model depends on seed and names only") {
  TempDir dir;
  const std::string config = golden("qwen3_moe") + "/config.json";
  InitOptions options;
  options.seed = 7;
  const auto summary = init_model(config, dir / "a", options);
  INFO(message_of(summary.status()));
  REQUIRE(summary.ok());
  options.num_threads = 3;
  options.max_shard_bytes = 60'000;
  REQUIRE(init_model(config, dir / "b", options).ok());
  options.seed = 8;
  REQUIRE(init_model(config, dir / "c", options).ok());
  const auto a = HfCheckpoint::open(dir / "a");
  const auto b = HfCheckpoint::open(dir / "b");
  const auto c = HfCheckpoint::open(dir / "c");
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  REQUIRE(c.ok());
  CHECK(same_weights(*a, *b));
  CHECK_FALSE(same_weights(*a, *c));
  int64_t parameters = 0;
  double sum = 0, squares = 0;
  for (const ParamSpec& spec : a->specs()) {
    parameters += spec.numel();
    for (const BF16 value : read(*a, spec)) {
      if (spec.role == ParamRole::kNorm) {
        CHECK(value.bits == 0x3f80);
      } else {
        sum += to_float(value);
        squares += to_float(value) * to_float(value);
      }
    }
  }
  CHECK(summary->parameters == parameters);
  const auto n = static_cast<double>(parameters);
  CHECK(std::abs(sum / n) < 4 * 0.12 / std::sqrt(n));
  CHECK(std::sqrt(squares / n) == Approx(0.12).epsilon(0.01));
  CHECK(exit_code(init_model(config, dir / "a", options).status()) == ExitCode::kUsage);
}

TEST_CASE("blocks of a parameter are drawn independently") {
  ParamSpec spec{"w", {3, kInitBlock}, ParamRole::kQ, 0, -1};
  std::vector<BF16> one(kInitBlock), two(kInitBlock), part(100);
  init_block(spec, 0.02, 1, 0, one);
  init_block(spec, 0.02, 1, 1, two);
  init_block(spec, 0.02, 1, 1, part);
  CHECK(std::memcmp(one.data(), two.data(), 200) != 0);
  CHECK(std::memcmp(part.data(), two.data(), 200) == 0);
}
