#include "reward/child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

namespace accord::reward {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kTail = 2000;  // bytes of its log that an error shows
constexpr auto kPoll = 5ms;
constexpr int kExecFailed = 127;

struct Pipe {
  Fd read;
  Fd write;
};

StatusOr<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return unavailable_error("cannot make a pipe: {}", std::strerror(errno));
  }
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

bool can_execute(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

// What the child needs between fork and exec, where only async-signal-safe calls are allowed.
struct Launch {
  const char* program;
  char* const* argv;
  char* const* environment;
  int input;
  int output;
  int error;
  int life;
  int failure;  // takes errno if it does not get to exec
};

// In the child's group: ends the group once nobody holds the other end of `life`. A grandchild that nobody
// waits for, so that the scorer itself has no child that it does not know.
void leave_watcher(int life) {
  const pid_t group = getpid();
  const pid_t between = fork();
  if (between < 0) {
    return;
  }
  if (between > 0) {
    waitpid(between, nullptr, 0);
    return;
  }
  if (fork() != 0) {
    _exit(0);
  }
  dup2(life, 0);
  close_range(1, ~0U, 0);
  char byte = 0;
  while (read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  kill(-group, SIGKILL);
  _exit(0);
}

[[noreturn]] void run_child(const Launch& launch) {
  setpgid(0, 0);
  leave_watcher(launch.life);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  if (dup2(launch.input, STDIN_FILENO) >= 0 && dup2(launch.output, STDOUT_FILENO) >= 0 &&
      (launch.error == STDERR_FILENO || dup2(launch.error, STDERR_FILENO) >= 0)) {
    execve(launch.program, launch.argv, launch.environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t told = write(launch.failure, &error, sizeof(error));
  _exit(kExecFailed);
}

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(wait_status),
                       strsignal(WTERMSIG(wait_status)));
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(wait_status));
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  reset();
  fd_ = other.release();
  return *this;
}

int Fd::release() { return std::exchange(fd_, -1); }

void Fd::reset() {
  if (fd_ >= 0) {
    close(std::exchange(fd_, -1));
  }
}

StatusOr<std::string> ChildProcess::find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (can_execute(name)) {
      return name;
    }
    return recipe_error("'{}' is not an executable file (relative paths start at the current directory)",
                        name);
  }
  const char* variable = std::getenv("PATH");
  std::string_view rest = variable == nullptr ? "/usr/local/bin:/usr/bin:/bin" : variable;
  while (!name.empty() && !rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string candidate = fmt::format("{}/{}", rest.substr(0, end), name);
    if (end > 0 && can_execute(candidate)) {
      return candidate;
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return recipe_error("'{}' is not an executable file in any directory of PATH", name);
}

StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& argv,
                                                            const std::string& log_path) {
  ACCORD_ASSIGN_OR_RETURN(const std::string program, find_program(argv.front()));
  ACCORD_ASSIGN_OR_RETURN(Pipe input, make_pipe());
  ACCORD_ASSIGN_OR_RETURN(Pipe output, make_pipe());
  ACCORD_ASSIGN_OR_RETURN(Pipe life, make_pipe());
  ACCORD_ASSIGN_OR_RETURN(Pipe failure, make_pipe());
  std::unique_ptr<ChildProcess> child(new ChildProcess);
  Fd log;
  if (!log_path.empty()) {
    log = Fd(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (log.get() < 0) {
      return io_error("{}: {}", log_path, std::strerror(errno));
    }
    child->log_path_ = log_path;
    child->log_begin_ = lseek(log.get(), 0, SEEK_END);
  }
  std::vector<char*> words;
  for (const std::string& word : argv) {
    words.push_back(const_cast<char*>(word.c_str()));  // execve writes to nothing
  }
  words.push_back(nullptr);
  const Launch launch{program.c_str(),  words.data(),       environ,
                      input.read.get(), output.write.get(), log.get() >= 0 ? log.get() : STDERR_FILENO,
                      life.read.get(),  failure.write.get()};
  const pid_t pid = fork();
  if (pid < 0) {
    return unavailable_error("cannot start '{}': {}", program, std::strerror(errno));
  }
  if (pid == 0) {
    run_child(launch);
  }
  setpgid(pid, pid);  // whoever comes first
  child->pid_ = pid;
  failure.write.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(failure.read.get(), &error, sizeof(error));  // ends when exec closed the other side
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    return unavailable_error("cannot start '{}': {}", program, std::strerror(error));
  }
  child->input_ = std::move(input.write);
  child->output_ = std::move(output.read);
  child->life_ = std::move(life.write);
  fcntl(child->input(), F_SETFL, O_NONBLOCK);
  fcntl(child->output(), F_SETFL, O_NONBLOCK);
  return child;
}

ChildProcess::~ChildProcess() { kill_group(); }

// The group goes before its leader is reaped: until then nobody else can have its number.
void ChildProcess::kill_group() {
  if (pid_ < 0 || ended_) {
    return;
  }
  kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);
  while (waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
  }
  ended_ = true;
}

std::string ChildProcess::wait_end(std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  while (!ended_) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
      kill_group();
    } else if (std::chrono::steady_clock::now() >= deadline) {
      return "";
    } else {
      std::this_thread::sleep_for(kPoll);
    }
  }
  return describe_end(wait_status_);
}

std::string ChildProcess::error_tail() const {
  std::ifstream file(log_path_, std::ios::binary | std::ios::ate);
  if (!file) {
    return "";
  }
  const auto size = static_cast<int64_t>(file.tellg());
  const int64_t begin = std::max(log_begin_, size - kTail);
  file.seekg(begin);
  std::string tail{std::istreambuf_iterator<char>(file), {}};
  if (begin > log_begin_) {
    tail.erase(0, tail.find('\n') + 1);  // whole lines only
  }
  while (tail.ends_with('\n')) {
    tail.pop_back();
  }
  return tail;
}

}  // namespace accord::reward
