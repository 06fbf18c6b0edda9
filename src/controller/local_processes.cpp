#include "controller/local_processes.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/log.hpp"

extern char** environ;  // posix_spawn wants it by name

namespace accord::controller {
namespace {

constexpr char kParentVariable[] = "ACCORD_PARENT_PID";
constexpr std::streamoff kLogTail = 2000;  // bytes of a dead child's log that its error shows

// posix_spawn's file actions, freed with their scope.
class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

// Children get a process group of their own, so that Ctrl-C reaches the controller alone, and the signal mask
// of a fresh process.
class SpawnAttributes {
 public:
  SpawnAttributes() {
    posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(wait_status),
                       strsignal(WTERMSIG(wait_status)));
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(wait_status));
}

std::string tail_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return "";
  }
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kLogTail));
  std::string tail{std::istreambuf_iterator<char>(file), {}};
  if (size > kLogTail) {
    tail.erase(0, tail.find('\n') + 1);  // whole lines only
  }
  return tail;
}

}  // namespace

LocalProcesses::~LocalProcesses() { stop(std::chrono::milliseconds(0)); }

Status LocalProcesses::start(const std::string& name, const std::vector<std::string>& arguments,
                             const std::string& log_path) {
  std::array<char, 4096> self{};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) < 0) {
    return io_error("/proc/self/exe: {}", std::strerror(errno));
  }
  std::vector<std::string> words{self.data()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);

  std::string parent = fmt::format("{}={}", kParentVariable, getpid());
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    environment.push_back(*entry);
  }
  environment.push_back(parent.data());
  environment.push_back(nullptr);

  const SpawnAttributes attributes;
  FileActions actions;
  posix_spawn_file_actions_addopen(actions.get(), STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(actions.get(), STDOUT_FILENO, log_path.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(actions.get(), STDOUT_FILENO, STDERR_FILENO);
  Child child{name, log_path, -1, false, 0};
  const int error =
      posix_spawn(&child.pid, self.data(), actions.get(), attributes.get(), argv.data(), environment.data());
  if (error != 0) {
    return unavailable_error("cannot start {} (log {}): {}", name, log_path, std::strerror(error));
  }
  children_.push_back(child);
  return absl::OkStatus();
}

void LocalProcesses::reap() {
  for (Child& child : children_) {
    if (!child.ended && waitpid(child.pid, &child.wait_status, WNOHANG) == child.pid) {
      child.ended = true;
    }
  }
}

Status LocalProcesses::check() {
  reap();
  for (const Child& child : children_) {
    if (child.ended) {
      return make_error(ExitCode::kWorkerLost, fmt::format("{} (pid {}) {}; the end of {}:\n{}", child.name,
                                                           child.pid, describe_end(child.wait_status),
                                                           child.log_path, tail_of(child.log_path)));
    }
  }
  return absl::OkStatus();
}

void LocalProcesses::stop(std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  const auto all_ended = [this] {
    reap();
    for (const Child& child : children_) {
      if (!child.ended) {
        return false;
      }
    }
    return true;
  };
  while (!all_ended() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (Child& child : children_) {
    if (!child.ended) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, &child.wait_status, 0);
      child.ended = true;
      if (grace.count() > 0) {
        log::warn("{} (pid {}) did not leave within {} ms and was killed", child.name, child.pid,
                  grace.count());
      }
    }
  }
  children_.clear();
}

Status die_with_parent() {
  const char* parent = std::getenv(kParentVariable);
  if (parent == nullptr) {
    return absl::OkStatus();  // started by hand
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::to_string(getppid()) != parent) {
    return make_error(ExitCode::kWorkerLost, "the process that started this worker is gone");
  }
  return absl::OkStatus();
}

}  // namespace accord::controller
