#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "checkpoint/safetensors.hpp"
#include "checkpoint/strict_json.hpp"

namespace accord::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = 8;
constexpr char kMetadataKey[] = "__metadata__";

constexpr std::pair<std::string_view, Dtype> kDtypeNames[] = {
    {"F64", Dtype::kF64},        {"F32", Dtype::kF32},        {"F16", Dtype::kF16}, {"BF16", Dtype::kBF16},
    {"F8_E4M3", Dtype::kF8E4M3}, {"F8_E5M2", Dtype::kF8E5M2}, {"I64", Dtype::kI64}, {"I32", Dtype::kI32},
    {"I16", Dtype::kI16},        {"I8", Dtype::kI8},          {"U8", Dtype::kU8},   {"BOOL", Dtype::kBool}};

std::optional<Dtype> dtype_of(std::string_view name) {
  for (const auto& [known, dtype] : kDtypeNames) {
    if (known == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

// Non-negative int64, or nothing.
std::optional<int64_t> as_size(const Json& value) {
  if (!value.is_number_unsigned()) {
    return std::nullopt;
  }
  const auto number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

StatusOr<Metadata> parse_metadata(const Json& value, const std::string& path) {
  if (!value.is_object()) {
    return data_error("{}: {} must be an object of strings; write the file again", path, kMetadataKey);
  }
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return data_error("{}: {} entry '{}' must be a string; write the file again", path, kMetadataKey,
                        printable(key));
    }
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// The members of one tensor's entry, checked one by one.
StatusOr<std::pair<TensorInfo, Range>> parse_entry(const std::string& name, const Json& entry,
                                                   const std::string& path) {
  const auto bad = [&](std::string_view rule) {
    return data_error("{}: tensor '{}': {}; the file is damaged or was not written as safetensors", path,
                      printable(name), rule);
  };
  if (!entry.is_object()) {
    return bad("its entry must be an object with dtype, shape and data_offsets");
  }
  for (const auto& [key, unused] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return bad(fmt::format("unknown member '{}'", printable(key)));
    }
  }
  if (entry.size() != 3) {
    return bad("dtype, shape and data_offsets must all be there");
  }
  TensorInfo tensor;
  tensor.name = name;
  const Json& dtype = entry.at("dtype");
  if (!dtype.is_string()) {
    return bad("dtype must be a string");
  }
  const std::optional<Dtype> known = dtype_of(dtype.get_ref<const std::string&>());
  if (!known) {
    return data_error("{}: tensor '{}': dtype '{}' is not supported; convert it to F32, BF16 or U8", path,
                      printable(name), printable(dtype.get_ref<const std::string&>()));
  }
  tensor.dtype = *known;
  const Json& shape = entry.at("shape");
  if (!shape.is_array()) {
    return bad("shape must be an array");
  }
  for (const Json& extent : shape) {
    const std::optional<int64_t> size = as_size(extent);
    if (!size) {
      return bad("shape must hold integers from 0 to 2^63-1");
    }
    tensor.shape.push_back(*size);
  }
  const Json& offsets = entry.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !as_size(offsets[0]) || !as_size(offsets[1])) {
    return bad("data_offsets must be two integers from 0 to 2^63-1");
  }
  const Range range{*as_size(offsets[0]), *as_size(offsets[1])};
  if (range.begin > range.end) {
    return bad(fmt::format("data_offsets [{}, {}] run backwards", range.begin, range.end));
  }
  const StatusOr<int64_t> bytes = checked_bytes(tensor.dtype, tensor.shape);
  if (!bytes.ok()) {
    return bad(message_of(bytes.status()));
  }
  if (*bytes != range.end - range.begin) {
    return bad(fmt::format("dtype {} and shape {} need {} bytes, data_offsets [{}, {}] span {}",
                           dtype_name(tensor.dtype), shape_text(tensor.shape), *bytes, range.begin, range.end,
                           range.end - range.begin));
  }
  tensor.bytes = *bytes;
  return std::pair{std::move(tensor), range};
}

// Sorted by data, the tensors must follow each other without a byte between, and end where the file ends.
Status check_tiling(const std::vector<std::pair<TensorInfo, Range>>& entries, int64_t data_bytes,
                    const std::string& path) {
  int64_t end = 0;
  const std::string* previous = nullptr;
  for (const auto& [tensor, range] : entries) {
    if (range.end > data_bytes) {
      return data_error(
          "{}: tensor '{}' ends at data byte {}, but the file holds {}: it is truncated; copy or download it "
          "again",
          path, printable(tensor.name), range.end, data_bytes);
    }
    if (range.begin < end) {
      return data_error("{}: tensors '{}' and '{}' overlap at data byte {}; the file is damaged", path,
                        printable(*previous), printable(tensor.name), range.begin);
    }
    if (range.begin > end) {
      return data_error("{}: {} bytes before tensor '{}' belong to no tensor; the file is damaged", path,
                        range.begin - end, printable(tensor.name));
    }
    end = range.end;
    previous = &tensor.name;
  }
  if (end != data_bytes) {
    return data_error("{}: {} bytes after the last tensor belong to no tensor; the file is damaged", path,
                      data_bytes - end);
  }
  return absl::OkStatus();
}

float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t widened = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (widened << 23) | (mantissa << 13));
}

template <class T>
T load(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

Status check_count(const TensorInfo& tensor, size_t wanted, const std::string& path) {
  if (tensor.numel() != static_cast<int64_t>(wanted)) {
    return data_error("{}: tensor '{}' has {} elements, expected {}", path, printable(tensor.name),
                      tensor.numel(), wanted);
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  for (const auto& [name, known] : kDtypeNames) {
    if (known == dtype) {
      return name;
    }
  }
  return "?";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

StatusOr<int64_t> checked_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = int64_t{1} << 62;
  int64_t bytes = size_of(dtype);
  // Zero extents first, so that [2^40, 2^40, 0] is the empty tensor it says it is.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    bytes = 0;
  }
  for (const int64_t extent : shape) {
    if (extent < 0) {
      return data_error("shape {} has a negative extent", shape_text(shape));
    }
    if (bytes > 0 && extent > kMost / bytes) {
      return data_error("shape {} is too large", shape_text(shape));
    }
    bytes *= extent;
  }
  return bytes;
}

StatusOr<SafetensorsIndex> parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < kLengthBytes) {
    return data_error("{}: has {} bytes, too few for a safetensors header; copy or download it again", path,
                      file.size());
  }
  const auto header_bytes = load<uint64_t>(file.data(), 0);
  if (header_bytes > kMaxHeaderBytes) {
    return data_error("{}: header length {} is above the limit of {} bytes; this is not a safetensors file",
                      path, header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > file.size() - kLengthBytes) {
    return data_error("{}: header of {} bytes does not fit in the file's {}; copy or download it again", path,
                      header_bytes, file.size());
  }
  const std::span<const std::byte> data = file.subspan(kLengthBytes + header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, header_bytes);
  if (text.empty() || text.front() != '{') {
    return data_error("{}: the header must start with '{{'; this is not a safetensors file", path);
  }
  ACCORD_ASSIGN_OR_RETURN(const Json header, parse_json(text, path));

  SafetensorsIndex index;
  std::vector<std::pair<TensorInfo, Range>> entries;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) {
      ACCORD_ASSIGN_OR_RETURN(index.metadata, parse_metadata(entry, path));
      continue;
    }
    ACCORD_ASSIGN_OR_RETURN(auto parsed, parse_entry(name, entry, path));
    entries.push_back(std::move(parsed));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.begin, a.second.end) < std::pair(b.second.begin, b.second.end);
  });
  ACCORD_RETURN_IF_ERROR(check_tiling(entries, static_cast<int64_t>(data.size()), path));
  for (auto& [tensor, range] : entries) {
    tensor.data = data.data() + range.begin;
    index.tensors.push_back(std::move(tensor));
  }
  return index;
}

StatusOr<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result;
  result.path_ = path;
  ACCORD_ASSIGN_OR_RETURN(result.file_, MappedFile::open(path));
  ACCORD_ASSIGN_OR_RETURN(result.index_,
                          parse_safetensors(std::span(result.file_.data(), result.file_.size()), path));
  for (size_t i = 0; i < result.index_.tensors.size(); ++i) {
    result.position_.emplace(result.index_.tensors[i].name, i);
  }
  return result;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : index_.tensors) {
    names.push_back(tensor.name);
  }
  return names;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = position_.find(std::string(name));
  return found == position_.end() ? nullptr : &index_.tensors[found->second];
}

StatusOr<const TensorInfo*> SafetensorsFile::require(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    return data_error("{}: tensor '{}' is missing", path_, printable(name));
  }
  return tensor;
}

StatusOr<const TensorInfo*> SafetensorsFile::require(std::string_view name, Dtype dtype,
                                                     const std::vector<int64_t>& shape) const {
  ACCORD_ASSIGN_OR_RETURN(const TensorInfo* tensor, require(name));
  if (tensor->dtype != dtype) {
    return data_error("{}: tensor '{}' has dtype {}, expected {}", path_, printable(name),
                      dtype_name(tensor->dtype), dtype_name(dtype));
  }
  const bool same = std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end(),
                               [](int64_t wanted, int64_t got) { return wanted == -1 || wanted == got; });
  if (!same) {
    return data_error("{}: tensor '{}' has shape {}, expected {} (-1: any)", path_, printable(name),
                      shape_text(tensor->shape), shape_text(shape));
  }
  return tensor;
}

Status convert_to_f32(const TensorInfo& tensor, int64_t first, std::span<float> out) {
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || count > tensor.numel() - first) {
    return internal_error("tensor '{}': elements [{}, {}) are not in its {}", printable(tensor.name), first,
                          first + count, tensor.numel());
  }
  switch (tensor.dtype) {
    case Dtype::kF32:
      if (count > 0) {
        std::memcpy(out.data(), tensor.data + first * size_of(Dtype::kF32), out.size_bytes());
      }
      return absl::OkStatus();
    case Dtype::kBF16:
      for (int64_t i = 0; i < count; ++i) {
        out[static_cast<size_t>(i)] = to_float(BF16{load<uint16_t>(tensor.data, first + i)});
      }
      return absl::OkStatus();
    case Dtype::kF16:
      for (int64_t i = 0; i < count; ++i) {
        out[static_cast<size_t>(i)] = half_to_float(load<uint16_t>(tensor.data, first + i));
      }
      return absl::OkStatus();
    default:
      return data_error("tensor '{}' has dtype {}, expected F32, BF16 or F16", printable(tensor.name),
                        dtype_name(tensor.dtype));
  }
}

Status SafetensorsFile::read_f32(std::string_view name, std::span<float> out) const {
  ACCORD_ASSIGN_OR_RETURN(const TensorInfo* tensor, require(name));
  ACCORD_RETURN_IF_ERROR(check_count(*tensor, out.size(), path_));
  return annotate(convert_to_f32(*tensor, 0, out), path_);
}

Status SafetensorsFile::read_i32(std::string_view name, std::span<int32_t> out) const {
  ACCORD_ASSIGN_OR_RETURN(const TensorInfo* tensor, require(name));
  ACCORD_RETURN_IF_ERROR(check_count(*tensor, out.size(), path_));
  if (tensor->dtype != Dtype::kI32 && tensor->dtype != Dtype::kI64) {
    return data_error("{}: tensor '{}' has dtype {}, expected I32 or I64", path_, printable(name),
                      dtype_name(tensor->dtype));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t value =
        tensor->dtype == Dtype::kI32 ? load<int32_t>(tensor->data, at) : load<int64_t>(tensor->data, at);
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
      return data_error("{}: tensor '{}' element {} is {}, which does not fit in 32 bits", path_,
                        printable(name), i, value);
    }
    out[i] = static_cast<int32_t>(value);
  }
  return absl::OkStatus();
}

}  // namespace accord::checkpoint
