#pragma once
// Whole files: bounded reads, and writes that other processes see either complete or not at all. Every error
// is an I/O error that names the path and the system's reason.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace accord {

// A file descriptor that is closed with its owner.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int close();  // errno of close(2), 0 when it went well or nothing was open

 private:
  int fd_ = -1;
};

// A regular file in read-only shared memory. Empty files have data() == nullptr.
class MappedFile {
 public:
  static StatusOr<MappedFile> open(const std::string& path);
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Writes beside `path`; commit() flushes to disk, renames over `path` and flushes the directory. Without a
// commit the temporary file is removed and `path` stays as it was.
class AtomicFile {
 public:
  static StatusOr<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  const std::string& path() const { return path_; }
  // Claims disk space, so that a full disk is reported before the work and not after it.
  Status reserve(int64_t bytes);
  Status write(std::string_view bytes);  // appends
  Status write_at(int64_t offset, const void* data, size_t size);
  Status commit();

 private:
  AtomicFile(std::string path, std::string temporary, FileDescriptor fd);
  void discard();

  std::string path_;
  std::string temporary_;  // empty once committed
  FileDescriptor fd_;
  int64_t end_ = 0;
};

// Appends all of `bytes` at the descriptor's position; `path` is for the message.
Status write_fully(int fd, const std::string& path, std::string_view bytes);

StatusOr<std::string> read_file(const std::string& path, int64_t max_bytes);
Status write_file_atomic(const std::string& path, std::string_view content);
Status make_dirs(const std::string& path);       // like mkdir -p
Status sync_path(const std::string& path);       // fsync of a file or directory
std::string parent_of(const std::string& path);  // "." for a bare name

}  // namespace accord
