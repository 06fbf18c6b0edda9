#include "base/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace accord {
namespace {

Status system_error_at(std::string_view path, std::string_view action, int error) {
  return io_error("{}: cannot {}: {}", path, action, std::generic_category().message(error));
}

StatusOr<FileDescriptor> open_for_reading(const std::string& path) {
  // Without O_NONBLOCK a named pipe would wait for a writer before it can be refused.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    return system_error_at(path, "open", errno);
  }
  return fd;
}

StatusOr<int64_t> regular_file_size(const FileDescriptor& fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) {
    return system_error_at(path, "stat", errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return io_error("{}: is not a regular file", path);
  }
  return static_cast<int64_t>(info.st_size);
}

}  // namespace

FileDescriptor::~FileDescriptor() { close(); }

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

int FileDescriptor::close() {
  const int fd = std::exchange(fd_, -1);
  return fd >= 0 && ::close(fd) != 0 ? errno : 0;
}

StatusOr<MappedFile> MappedFile::open(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const FileDescriptor fd, open_for_reading(path));
  ACCORD_ASSIGN_OR_RETURN(const int64_t size, regular_file_size(fd, path));
  MappedFile file;
  if (size == 0) {
    return file;
  }
  void* data = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return system_error_at(path, "map into memory", errno);
  }
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = static_cast<size_t>(size);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

StatusOr<AtomicFile> AtomicFile::create(const std::string& path) {
  static std::atomic<uint64_t> serial{0};
  std::string temporary = fmt::format("{}.tmp.{}.{}", path, ::getpid(), serial.fetch_add(1));
  FileDescriptor fd(::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) {
    return system_error_at(temporary, "create", errno);
  }
  return AtomicFile(path, std::move(temporary), std::move(fd));
}

AtomicFile::AtomicFile(std::string path, std::string temporary, FileDescriptor fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, std::string())),
      fd_(std::move(other.fd_)),
      end_(other.end_) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this != &other) {
    discard();
    path_ = std::move(other.path_);
    temporary_ = std::exchange(other.temporary_, std::string());
    fd_ = std::move(other.fd_);
    end_ = other.end_;
  }
  return *this;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    temporary_.clear();
  }
}

Status AtomicFile::reserve(int64_t bytes) {
  if (bytes <= 0) {
    return absl::OkStatus();
  }
  const int error = ::posix_fallocate(fd_.get(), 0, bytes);
  // File systems without preallocation report a full disk at the write instead.
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
    return system_error_at(path_, fmt::format("reserve {} bytes", bytes), error);
  }
  return absl::OkStatus();
}

Status AtomicFile::write(std::string_view bytes) { return write_at(end_, bytes.data(), bytes.size()); }

Status AtomicFile::write_at(int64_t offset, const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::pwrite(fd_.get(), next, size, offset);
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return system_error_at(path_, "write", errno);
    }
    next += written;
    offset += written;
    size -= static_cast<size_t>(written);
  }
  end_ = offset > end_ ? offset : end_;
  return absl::OkStatus();
}

Status AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0) {
    return system_error_at(path_, "flush to disk", errno);
  }
  if (const int error = fd_.close(); error != 0) {
    return system_error_at(path_, "close", error);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return system_error_at(path_, "rename the finished file to this name", errno);
  }
  temporary_.clear();
  return sync_path(parent_of(path_));
}

StatusOr<std::string> read_file(const std::string& path, int64_t max_bytes) {
  ACCORD_ASSIGN_OR_RETURN(const FileDescriptor fd, open_for_reading(path));
  ACCORD_ASSIGN_OR_RETURN(const int64_t size, regular_file_size(fd, path));
  if (size > max_bytes) {
    return io_error("{}: has {} bytes, more than the {} that such a file may have", path, size, max_bytes);
  }
  std::string content(static_cast<size_t>(size), '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t got = ::read(fd.get(), content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return system_error_at(path, "read", errno);
    }
    if (got == 0) {
      return io_error("{}: became shorter while it was read", path);
    }
    filled += static_cast<size_t>(got);
  }
  return content;
}

Status write_fully(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return system_error_at(path, "write", errno);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

Status write_file_atomic(const std::string& path, std::string_view content) {
  ACCORD_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  ACCORD_RETURN_IF_ERROR(file.write(content));
  return file.commit();
}

Status make_dirs(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return io_error("{}: cannot create the directory: {}", path, error.message());
  }
  if (!std::filesystem::is_directory(path, error)) {
    return io_error("{}: exists and is not a directory", path);
  }
  return absl::OkStatus();
}

Status sync_path(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const FileDescriptor fd, open_for_reading(path));
  if (::fsync(fd.get()) != 0) {
    return system_error_at(path, "flush to disk", errno);
  }
  return absl::OkStatus();
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace accord
