#include "checkpoint/safetensors.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "temp_dir.hpp"

using namespace accord;
using namespace accord::checkpoint;

namespace {

std::string file_of(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

StatusOr<SafetensorsIndex> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "x.safetensors");
}

std::string refusal(const std::string& file) {
  const auto index = parse(file);
  REQUIRE_FALSE(index.ok());
  CHECK(exit_code(index.status()) == ExitCode::kBadData);
  const std::string message(message_of(index.status()));
  CHECK(message.find("x.safetensors: ") == 0);
  return message;
}

std::string refusal(const std::string& header, const std::string& data) {
  return refusal(file_of(header, data));
}

bool has(const std::string& text, const std::string& part) {
  INFO(text << "\n  lacks: " << part);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

const std::string kFour(4, '\0');

}  // namespace

TEST_CASE("files that other software wrote are read") {
  for (const char* model : {"qwen3_moe", "qwen3_dense_tied", "llama_tied"}) {
    for (const char* name : {"model", "golden"}) {
      const std::string path = std::string(ACCORD_TEST_DATA) + "/hf/" + model + "/" + name + ".safetensors";
      CAPTURE(path);
      const auto file = SafetensorsFile::open(path);
      REQUIRE(file.ok());
      CHECK(file->tensors().size() >= 4);
      CHECK(file->names().size() == file->tensors().size());
    }
  }
  const auto file = SafetensorsFile::open(std::string(ACCORD_TEST_DATA) + "/hf/qwen3_moe/model.safetensors");
  REQUIRE(file.ok());
  CHECK(file->metadata() == Metadata{{"format", "pt"}});
  CHECK(file->names().front() == "lm_head.weight");
  const TensorInfo* head = file->find("lm_head.weight");
  REQUIRE(head != nullptr);
  CHECK(head->dtype == Dtype::kBF16);
  CHECK(head->shape == std::vector<int64_t>{320, 64});
  CHECK(head->bytes == 40960);
  CHECK(file->find("lm_head") == nullptr);
  CHECK(file->require("lm_head.weight", Dtype::kBF16, {-1, 64}).ok());
  CHECK_FALSE(file->require("lm_head.weight", Dtype::kBF16, {64, -1}).ok());
  CHECK_FALSE(file->require("lm_head.weight", Dtype::kF32, {320, 64}).ok());
  std::vector<float> values(320 * 64);
  REQUIRE(file->read_f32("lm_head.weight", values).ok());
  double sum = 0;
  for (const float v : values) sum += std::abs(v);
  CHECK(sum / static_cast<double>(values.size()) == Approx(0.12 * std::sqrt(2 / 3.14159265)).epsilon(0.02));
  CHECK_FALSE(file->read_f32("lm_head.weight", std::span(values).first(5)).ok());
}

TEST_CASE("every malformed safetensors file has its own message") {
  const std::string good = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  REQUIRE(parse(file_of(good, kFour)).ok());
  REQUIRE(parse(file_of(good + "   ", kFour)).ok());
  REQUIRE(parse(file_of("{}", "")).ok());

  has(refusal(""), "too few for a safetensors header");
  has(refusal("\x05\0\0\0"), "too few");
  has(refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)), "above the limit of 100000000");
  has(refusal(std::string("\x03\0\0\0\0\0\0\0{}", 10)), "does not fit in the file's 10");
  has(refusal("", kFour), "must start with '{'");
  has(refusal("[]", ""), "must start with '{'");
  has(refusal(" {}", ""), "must start with '{'");
  has(refusal("{", ""), "not valid JSON");
  has(refusal("{} x", ""), "not valid JSON");
  has(refusal("{\"\xff\":1}", ""), "not valid JSON");
  has(refusal(R"({"a":NaN})", ""), "not valid JSON");
  has(refusal("{\"a\":" + std::string(100000, '[') + "}", ""), "nested more than");
  has(refusal(good.substr(0, good.size() - 1) + "," + good.substr(1), kFour), "key 'a' appears twice");
  has(refusal(R"({"a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", kFour),
      "key 'shape' appears twice");
  has(refusal(R"({"__metadata__":{"x":1}})", ""), "entry 'x' must be a string");
  has(refusal(R"({"__metadata__":"x"})", ""), "must be an object of strings");
  has(refusal(R"({"a":1})", ""), "must be an object with dtype");
  has(refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", kFour), "unknown member 'x'");
  has(refusal(R"({"a":{"dtype":"U8","shape":[4]}})", kFour), "must all be there");
  has(refusal(R"({"a":{"dtype":1,"shape":[4],"data_offsets":[0,4]}})", kFour), "dtype must be a string");
  has(refusal(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,4]}})", kFour),
      "tensor 'a': dtype 'F4' is not supported; convert");
  has(refusal(R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", kFour), "shape must be an array");
  for (const char* extent : {"-4", "4.0", "\"4\"", "null", "9223372036854775808", "1e3"}) {
    has(refusal(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,4]}}}})", extent), kFour),
        "shape must hold integers");
  }
  has(refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", kFour), "two integers");
  has(refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,-4]}})", kFour), "two integers");
  has(refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", kFour), "run backwards");
  has(refusal(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}})", kFour),
      "dtype F32 and shape [4] need 16 bytes, data_offsets [0, 4] span 4");
  has(refusal(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""),
      "too large");
  has(refusal(R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", ""),
      "too large");
  has(refusal(good, "abc"), "tensor 'a' ends at data byte 4, but the file holds 3: it is truncated");
  has(refusal(good, "abcde"), "1 bytes after the last tensor");
  const std::string pair =
      R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}},"b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},4]}}}})";
  REQUIRE(parse(file_of(fmt::format(fmt::runtime(pair), 2, 2), kFour)).ok());
  has(refusal(fmt::format(fmt::runtime(pair), 1, 3), kFour), "1 bytes before tensor 'b' belong to no tensor");
  has(refusal(fmt::format(fmt::runtime(pair), 3, 1), kFour), "tensors 'a' and 'b' overlap at data byte 1");
  has(refusal("{\"a\\u0001b\":1}", ""), "a\\x01b");
}

TEST_CASE("empty tensors and scalars are legal, wherever they lie") {
  const auto index = parse(file_of(
      R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]},"f":{"dtype":"I64","shape":[4611686018427387904,0],"data_offsets":[0,0]}})",
      kFour));
  REQUIRE(index.ok());
  REQUIRE(index->tensors.size() == 3);
  CHECK(index->tensors[0].name == "f");
  CHECK(index->tensors[1].name == "s");
  CHECK(index->tensors[1].numel() == 1);
  CHECK(index->tensors[2].numel() == 0);
}

TEST_CASE("what the writer writes is read back, byte for byte and in a fixed order") {
  TempDir dir;
  const std::vector<float> f{1.5F, -0.0F, 3e38F};
  const std::vector<uint8_t> u{1, 2, 3, 4, 5};
  const std::vector<uint16_t> b{0x3f80, 0xbf80};
  const std::vector<TensorData> tensors{{{"z.u8", Dtype::kU8, {5}}, u.data()},
                                        {{"b\"\\é", Dtype::kBF16, {2, 1}}, b.data()},
                                        {{"f", Dtype::kF32, {3}}, f.data()},
                                        {{"empty", Dtype::kF32, {0}}, nullptr}};
  REQUIRE(write_safetensors(dir / "a", tensors, {{"format", "pt"}, {"k\n", "v"}}).ok());
  const auto file = SafetensorsFile::open(dir / "a");
  REQUIRE(file.ok());
  CHECK(file->names() == std::vector<std::string>{"empty", "f", "b\"\\é", "z.u8"});
  CHECK(file->metadata() == Metadata{{"format", "pt"}, {"k\n", "v"}});
  std::vector<float> back(3);
  REQUIRE(file->read_f32("f", back).ok());
  CHECK(std::memcmp(back.data(), f.data(), 12) == 0);
  CHECK(std::memcmp(file->find("z.u8")->data, u.data(), 5) == 0);
  CHECK(reinterpret_cast<uintptr_t>(file->find("f")->data) % 8 == 0);

  // Another order of arrival, in pieces: the same bytes.
  std::vector<TensorSpec> specs(tensors.rbegin(), tensors.rend());
  auto writer = SafetensorsWriter::create(dir / "b", specs, {{"k\n", "v"}, {"format", "pt"}});
  REQUIRE(writer.ok());
  REQUIRE(writer->append("z.u8", u.data(), 2).ok());
  REQUIRE(writer->append("b\"\\é", std::span<const uint16_t>(b)).ok());
  REQUIRE(writer->append("f", f.data(), 12).ok());
  CHECK_FALSE(writer->commit().ok());
  CHECK_FALSE(std::filesystem::exists(dir / "b"));
  CHECK_FALSE(writer->append("z.u8", u.data(), 4).ok());
  CHECK_FALSE(writer->append("nobody", u.data(), 1).ok());
  REQUIRE(writer->append("z.u8", u.data() + 2, 3).ok());
  REQUIRE(writer->commit().ok());
  CHECK(slurp(dir / "a") == slurp(dir / "b"));
}

TEST_CASE("an abandoned write leaves nothing behind and the old file alone") {
  TempDir dir;
  spill(dir / "a", "old");
  {
    auto writer = SafetensorsWriter::create(dir / "a", {{"x", Dtype::kF32, {4}}});
    REQUIRE(writer.ok());
    auto moved = std::move(*writer);
    CHECK_FALSE(moved.commit().ok());
  }
  CHECK(slurp(dir / "a") == "old");
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path), {}) == 1);
  CHECK_FALSE(SafetensorsWriter::create(dir / "c", {{"x", Dtype::kF32, {1}}, {"x", Dtype::kF32, {1}}}).ok());
  CHECK_FALSE(SafetensorsWriter::create(dir / "c", {{"x\xff", Dtype::kF32, {1}}}).ok());
  CHECK_FALSE(SafetensorsWriter::create(dir / "c", {{"__metadata__", Dtype::kF32, {1}}}).ok());
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path), {}) == 1);
}

TEST_CASE("half precision widens exactly, integers are range checked") {
  TempDir dir;
  const std::vector<uint16_t> halves{0x3c00, 0xc000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x8000, 0x7c00, 0xfe00};
  const std::vector<float> expected{1.0F,     -2.0F,    0x1p-24F, 0x1.ff8p-15F,
                                    0x1p-14F, 65504.0F, -0.0F,    std::numeric_limits<float>::infinity()};
  const std::vector<int64_t> wide{1, -2147483648LL, 2147483648LL};
  REQUIRE(write_safetensors(dir / "a", {{{"h", Dtype::kF16, {9}}, halves.data()},
                                        {{"i", Dtype::kI64, {2}}, wide.data()},
                                        {{"j", Dtype::kI64, {3}}, wide.data()}})
              .ok());
  const auto file = SafetensorsFile::open(dir / "a");
  REQUIRE(file.ok());
  std::vector<float> got(9);
  REQUIRE(file->read_f32("h", got).ok());
  CHECK(std::memcmp(got.data(), expected.data(), 8 * sizeof(float)) == 0);
  CHECK(std::isnan(got[8]));
  std::vector<int32_t> narrow(2);
  REQUIRE(file->read_i32("i", narrow).ok());
  CHECK(narrow == std::vector<int32_t>{1, std::numeric_limits<int32_t>::min()});
  narrow.resize(3);
  CHECK(message_of(file->read_i32("j", narrow)).find("does not fit in 32 bits") != std::string_view::npos);
  CHECK_FALSE(file->read_f32("i", std::span(got).first(2)).ok());
  CHECK_FALSE(file->read_i32("h", std::span(narrow)).ok());
}
