#include "controller/run_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/files.hpp"

namespace accord::controller {
namespace {

std::string read_holder(int fd) {
  std::array<char, 512> text{};
  const ssize_t size = pread(fd, text.data(), text.size() - 1, 0);
  std::string holder(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  while (!holder.empty() && holder.back() == '\n') {
    holder.pop_back();
  }
  return holder.empty() ? "a process that has not described itself yet" : holder;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

Status take_lock(const std::string& path, int fd) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
    return absl::OkStatus();
  }
  if (errno != EWOULDBLOCK) {
    return io_error("{}/lock: cannot lock: {}", path, std::strerror(errno));
  }
  return make_error(
      ExitCode::kRunLocked,
      fmt::format(
          "run.dir {} is in use by {}; wait for it, stop it with 'accord stop', or set another run.dir", path,
          read_holder(fd)));
}

Status check_unused(const std::string& path, bool resume) {
  std::error_code error;
  if (!resume && std::filesystem::exists(path + "/metrics.jsonl", error)) {
    return usage_error(
        "run.dir {} already holds a run (metrics.jsonl exists); continue it with --resume, or set another "
        "run.dir",
        path);
  }
  return absl::OkStatus();
}

}  // namespace

Status RunDirectory::check(const std::string& path, bool resume) {
  const FileDescriptor fd(::open((path + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  if (fd.valid()) {
    ACCORD_RETURN_IF_ERROR(take_lock(path, fd.get()));
  }
  return check_unused(path, resume);
}

StatusOr<RunDirectory> RunDirectory::open(const std::string& path, bool resume) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return io_error("run.dir {}: cannot create it: {}", path, error.message());
  }
  const std::string lock_path = path + "/lock";
  const int fd = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return io_error("{}: cannot open the lock file: {}", lock_path, std::strerror(errno));
  }
  RunDirectory directory(path, fd);
  ACCORD_RETURN_IF_ERROR(take_lock(path, fd));
  ACCORD_RETURN_IF_ERROR(check_unused(path, resume));
  for (const char* name : {"samples", "logs", "checkpoints"}) {
    ACCORD_RETURN_IF_ERROR(directory.create(name));
  }
  return directory;
}

RunDirectory::RunDirectory(RunDirectory&& other) noexcept
    : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

RunDirectory& RunDirectory::operator=(RunDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(lock_fd_, other.lock_fd_);
  return *this;
}

RunDirectory::~RunDirectory() {
  if (lock_fd_ >= 0) {
    close(lock_fd_);  // releases the lock
  }
}

Status RunDirectory::create(const std::string& name) const {
  std::error_code error;
  std::filesystem::create_directories(file(name), error);
  return error ? io_error("{}: cannot create it: {}", file(name), error.message()) : absl::OkStatus();
}

Status RunDirectory::describe_holder(const std::string& address) {
  const std::string text = fmt::format("pid {} on {}, listening on {}\n", getpid(), host_name(), address);
  if (ftruncate(lock_fd_, 0) != 0 ||
      pwrite(lock_fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return io_error("{}/lock: cannot write: {}", path_, std::strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace accord::controller
