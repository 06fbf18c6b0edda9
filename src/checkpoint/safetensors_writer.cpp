#include <algorithm>
#include <tuple>
#include <utility>

#include "checkpoint/safetensors.hpp"
#include "checkpoint/strict_json.hpp"

namespace accord::checkpoint {
namespace {

constexpr size_t kAlignment = 8;

std::string quoted(const std::string& text) { return Json(text).dump(); }

std::string header_text(const std::vector<TensorSpec>& specs, const std::vector<int64_t>& sizes,
                        const Metadata& metadata) {
  std::string text = "{";
  const auto separate = [&] {
    if (text.size() > 1) {
      text += ',';
    }
  };
  if (!metadata.empty()) {
    text += R"("__metadata__":)" + Json(metadata).dump();
  }
  int64_t offset = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    separate();
    text +=
        fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", quoted(specs[i].name),
                    dtype_name(specs[i].dtype), fmt::join(specs[i].shape, ","), offset, offset + sizes[i]);
    offset += sizes[i];
  }
  text += '}';
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  return text;
}

std::string length_prefix(size_t header_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>((static_cast<uint64_t>(header_bytes) >> (8 * i)) & 0xff);
  }
  return bytes;
}

}  // namespace

StatusOr<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, std::vector<TensorSpec> specs,
                                                      const Metadata& metadata) {
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return std::tuple(-size_of(a.dtype), std::string_view(a.name)) <
           std::tuple(-size_of(b.dtype), std::string_view(b.name));
  });
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const TensorSpec& spec : specs) {
    if (spec.name.empty() || spec.name == "__metadata__") {
      return internal_error("{}: a tensor may not be named '{}'", path, spec.name);
    }
    const StatusOr<int64_t> bytes = checked_bytes(spec.dtype, spec.shape);
    if (!bytes.ok() || *bytes > (int64_t{1} << 62) - total) {
      return internal_error("{}: tensor '{}' with shape {} is too large", path, printable(spec.name),
                            shape_text(spec.shape));
    }
    sizes.push_back(*bytes);
    total += *bytes;
  }
  std::string header;
  try {
    header = header_text(specs, sizes, metadata);
  } catch (const nlohmann::json::exception& e) {
    return internal_error("{}: a tensor name or metadata entry is not UTF-8: {}", path, e.what());
  }

  ACCORD_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  SafetensorsWriter writer(std::move(file));
  auto offset = static_cast<int64_t>(kAlignment + header.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!writer.slots_.emplace(specs[i].name, Slot{offset, sizes[i], 0}).second) {
      return internal_error("{}: tensor '{}' is listed twice", path, printable(specs[i].name));
    }
    offset += sizes[i];
  }
  ACCORD_RETURN_IF_ERROR(writer.file_.reserve(offset));
  ACCORD_RETURN_IF_ERROR(writer.file_.write(length_prefix(header.size())));
  ACCORD_RETURN_IF_ERROR(writer.file_.write(header));
  return writer;
}

Status SafetensorsWriter::append(std::string_view name, const void* data, size_t size) {
  const auto found = slots_.find(name);
  if (found == slots_.end()) {
    return internal_error("{}: tensor '{}' is not among those announced", file_.path(), printable(name));
  }
  Slot& slot = found->second;
  if (static_cast<int64_t>(size) > slot.bytes - slot.written) {
    return internal_error("{}: tensor '{}' takes {} bytes, got {}", file_.path(), printable(name), slot.bytes,
                          slot.written + static_cast<int64_t>(size));
  }
  ACCORD_RETURN_IF_ERROR(file_.write_at(slot.begin + slot.written, data, size));
  slot.written += static_cast<int64_t>(size);
  return absl::OkStatus();
}

Status SafetensorsWriter::write_part(std::string_view name, int64_t offset, const void* data, size_t size) {
  const auto found = slots_.find(name);
  if (found == slots_.end()) {
    return internal_error("{}: tensor '{}' is not among those announced", file_.path(), printable(name));
  }
  Slot& slot = found->second;
  const auto bytes = static_cast<int64_t>(size);
  if (offset < 0 || bytes > slot.bytes || offset > slot.bytes - bytes) {
    return internal_error("{}: tensor '{}' takes {} bytes, got {} at {}", file_.path(), printable(name),
                          slot.bytes, bytes, offset);
  }
  const std::lock_guard lock(*mutex_);
  ACCORD_RETURN_IF_ERROR(file_.write_at(slot.begin + offset, data, size));
  slot.written += bytes;
  return absl::OkStatus();
}

Status SafetensorsWriter::commit() {
  for (const auto& [name, slot] : slots_) {
    if (slot.written != slot.bytes) {
      return internal_error("{}: tensor '{}' has {} of its {} bytes", file_.path(), printable(name),
                            slot.written, slot.bytes);
    }
  }
  return file_.commit();
}

Status write_safetensors(const std::string& path, const std::vector<TensorData>& tensors,
                         const Metadata& metadata) {
  std::vector<TensorSpec> specs(tensors.begin(), tensors.end());
  ACCORD_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                          SafetensorsWriter::create(path, std::move(specs), metadata));
  for (const TensorData& tensor : tensors) {
    ACCORD_ASSIGN_OR_RETURN(const int64_t bytes, checked_bytes(tensor.dtype, tensor.shape));
    ACCORD_RETURN_IF_ERROR(writer.append(tensor.name, tensor.data, static_cast<size_t>(bytes)));
  }
  return writer.commit();
}

}  // namespace accord::checkpoint
