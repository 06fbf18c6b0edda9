#include "reward/child_process.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace accord::reward {
namespace {

using namespace std::chrono_literals;

constexpr auto kPoll = 5ms;
constexpr int kExecFailed = 127;
constexpr int kManyFiles = 65536;

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

// fork() without the handlers of libraries, which are not safe between fork and exec.
pid_t plain_fork() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
  return _Fork();
#else
  return fork();
#endif
}

// In the child's group: ends the group once nobody holds the other end of `life`. A grandchild that nobody
// waits for, so that the scorer itself has no child that it does not know. False: it cannot be made.
bool leave_watcher(int life) {
  const pid_t group = getpid();
  const pid_t between = plain_fork();
  if (between < 0) {
    return false;
  }
  if (between > 0) {
    int status = 0;
    while (waitpid(between, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (const pid_t watcher = plain_fork(); watcher != 0) {
    _exit(watcher > 0 ? 0 : 1);
  }
  dup2(life, 0);
  if (close_range(1, ~0U, 0) != 0) {  // before Linux 5.9
    for (int fd = 1; fd < kManyFiles; ++fd) {
      close(fd);
    }
  }
  char byte = 0;
  while (read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  kill(-group, SIGKILL);
  _exit(0);
}

[[noreturn]] void run_child(const Launch& launch) {
  setpgid(0, 0);
  const bool watched = leave_watcher(launch.life);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int ignored : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) {
    signal(ignored, SIG_DFL);
  }
  errno = EAGAIN;
  if (watched && dup2(launch.input, STDIN_FILENO) >= 0 && dup2(launch.output, STDOUT_FILENO) >= 0 &&
      (launch.error == STDERR_FILENO || dup2(launch.error, STDERR_FILENO) >= 0)) {
    close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);  // also what others left open
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
  if (!log_path.empty()) {
    ACCORD_ASSIGN_OR_RETURN(child->log_, ErrorLog::open(log_path));
  }
  std::vector<char*> words;
  for (const std::string& word : argv) {
    words.push_back(const_cast<char*>(word.c_str()));  // execve writes to nothing
  }
  words.push_back(nullptr);
  const Launch launch{
      program.c_str(),  words.data(),       environ,
      input.read.get(), output.write.get(), child->log_ ? child->log_->child_end() : STDERR_FILENO,
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
  if (child->log_) {
    child->log_->started();
  }
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
  // All of the group that are children of this process: as the first process of a container it also inherits
  // the scorer's orphans.
  bool reaped = false;
  int status = 0;
  pid_t got = 0;
  while ((got = waitpid(-pid_, &status, 0)) > 0 || (got < 0 && errno == EINTR)) {
    if (got == pid_) {
      wait_status_ = status;
      reaped = true;
    }
  }
  while (!reaped && waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {  // it left its group
  }
  ended_ = true;
  if (log_) {
    log_->finish();
  }
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

std::string ChildProcess::error_tail() const { return log_ && ended_ ? log_->tail() : ""; }

}  // namespace accord::reward
