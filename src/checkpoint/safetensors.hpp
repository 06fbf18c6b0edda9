#pragma once
// The safetensors format (https://github.com/huggingface/safetensors#format): 8 bytes little-endian header
// length N, N bytes of JSON {name: {dtype, shape, data_offsets: [begin, end)}, "__metadata__": {string:
// string}}, then the data. Tensors are row-major and tile the data section exactly.
//
// The reader is strict. It refuses, naming file, tensor and rule: a header above 100 MB or longer than the
// file, invalid JSON, duplicate keys, unknown members or dtypes, negative or overflowing sizes, offsets that
// disagree with dtype and shape, and gaps, overlaps or trailing bytes in the data section.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.hpp"
#include "base/files.hpp"
#include "base/status.hpp"

namespace accord::checkpoint {

// Everything but the data of one tensor.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // empty: a scalar
};

// A tensor in an open file. `data` may be unaligned: foreign writers may place it anywhere.
struct TensorInfo : TensorSpec {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t numel() const { return bytes / size_of(dtype); }
};

std::string_view dtype_name(Dtype dtype);                   // "BF16", "F8_E4M3", ...
std::string shape_text(const std::vector<int64_t>& shape);  // "[2, 3]"

using Metadata = std::map<std::string, std::string>;

struct SafetensorsIndex {
  std::vector<TensorInfo> tensors;  // in the order of their data
  Metadata metadata;
};

// Parses a whole file that lies in memory; the tensors point into it. `path` is named in errors.
StatusOr<SafetensorsIndex> parse_safetensors(std::span<const std::byte> file, const std::string& path);

// A file in mapped memory. TensorInfo pointers live as long as this object (moves keep them valid).
class SafetensorsFile {
 public:
  static StatusOr<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return index_.tensors; }  // in file order
  std::vector<std::string> names() const;                                    // in file order
  const Metadata& metadata() const { return index_.metadata; }

  const TensorInfo* find(std::string_view name) const;               // nullptr: no such tensor
  StatusOr<const TensorInfo*> require(std::string_view name) const;  // an error that names file and tensor
  // The same, and the dtype and shape must be these; -1 in `shape` accepts any size of that axis.
  StatusOr<const TensorInfo*> require(std::string_view name, Dtype dtype,
                                      const std::vector<int64_t>& shape) const;

  // Copies with conversion; out.size() must be the tensor's element count.
  Status read_f32(std::string_view name, std::span<float> out) const;    // from F32, BF16, F16
  Status read_i32(std::string_view name, std::span<int32_t> out) const;  // from I32, I64 (range checked)

 private:
  std::string path_;
  MappedFile file_;
  SafetensorsIndex index_;
  std::unordered_map<std::string, size_t> position_;
};

// Exact widening of elements [first, first + out.size()) of a floating tensor (F32, BF16 or F16).
Status convert_to_f32(const TensorInfo& tensor, int64_t first, std::span<float> out);

// Writes one file through AtomicFile: nothing is at `path` before commit(). The layout depends only on the
// specs: data ordered by element size (largest first), then name, so every tensor is naturally aligned.
class SafetensorsWriter {
 public:
  static StatusOr<SafetensorsWriter> create(const std::string& path, std::vector<TensorSpec> specs,
                                            const Metadata& metadata = {});

  // Appends bytes to one tensor. Tensors may come in any order, each in as many pieces as is handy.
  Status append(std::string_view name, const void* data, size_t size);
  template <class T>
  Status append(std::string_view name, std::span<const T> values) {
    return append(name, values.data(), values.size_bytes());
  }
  // Bytes [offset, offset + size) of one tensor; several threads may write parts that do not overlap. A
  // tensor is written either so or by append().
  Status write_part(std::string_view name, int64_t offset, const void* data, size_t size);
  // Refuses a file with an incomplete tensor.
  Status commit();

 private:
  struct Slot {
    int64_t begin = 0;  // absolute file offset
    int64_t bytes = 0;
    int64_t written = 0;
  };
  explicit SafetensorsWriter(AtomicFile file)
      : file_(std::move(file)), mutex_(std::make_unique<std::mutex>()) {}

  AtomicFile file_;
  std::unique_ptr<std::mutex> mutex_;  // of write_part
  std::map<std::string, Slot, std::less<>> slots_;
};

struct TensorData : TensorSpec {
  const void* data = nullptr;
};

// All at once, for tensors that lie in memory.
Status write_safetensors(const std::string& path, const std::vector<TensorData>& tensors,
                         const Metadata& metadata = {});

// dtype size times the extents; an error (without file or tensor name) when negative or above 2^62.
StatusOr<int64_t> checked_bytes(Dtype dtype, const std::vector<int64_t>& shape);

}  // namespace accord::checkpoint
