#include "tests/faults/child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "tests/faults/refused_calls.h"

namespace lockstep::testing {

namespace {

using Milliseconds = std::chrono::milliseconds;

// A file in memory to which several processes write. It is opened for appending, without which writes would overwrite
// each other: the kernel does not lock the shared offset of a memfd between writes, as it does for a file on disk.
int new_log() {
  const int memory = ::memfd_create("log", MFD_CLOEXEC);
  if (memory < 0 || ::fcntl(memory, F_SETFL, O_APPEND) != 0) std::abort();
  return memory;
}

std::string contents(int memory) {
  struct stat status {};
  if (::fstat(memory, &status) != 0) std::abort();
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t got = ::pread(memory, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The state letter follows the name, which is in parentheses and may contain any character.
bool is_zombie(const std::string& stat) {
  const std::size_t end = stat.rfind(") ");
  return end == std::string::npos || stat[end + 2] == 'Z' || stat[end + 2] == 'X';
}

std::string new_mark() {
  static int count = 0;
  return "LOCKSTEP_TEST_MARK=" + std::to_string(::getpid()) + "-" + std::to_string(++count) + "-end";
}

}  // namespace

Child::Child(const std::vector<std::string>& command, const ChildOptions& options)
    : mark_(new_mark()), output_(new_log()), errors_(new_log()) {
  const int input = ::memfd_create("input", MFD_CLOEXEC);
  if (::write(input, options.input.data(), options.input.size()) != static_cast<ssize_t>(options.input.size()))
    std::abort();
  ::lseek(input, 0, SEEK_SET);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    if (options.network >= 0 && ::setns(options.network, CLONE_NEWNET) != 0) ::_exit(126);
    ::dup2(input, STDIN_FILENO);
    ::dup2(options.output_fd >= 0 ? options.output_fd : output_, STDOUT_FILENO);
    ::dup2(options.one_file ? STDOUT_FILENO : errors_, STDERR_FILENO);
    // These may be ignored in a test that runs in the background, and the child would inherit that.
    for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGPIPE}) std::signal(number, SIG_DFL);
    for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_ID",
                             "PMI_SIZE", "PMIX_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID",
                             "SLURM_STEP_ID", "SLURM_STEPID", "KUBERNETES_SERVICE_HOST", "PET_NNODES", "PET_NODE_RANK",
                             "PET_NPROC_PER_NODE", "LOCKSTEP_TOKEN", "LOCKSTEP_TOKEN_FILE"})
      ::unsetenv(name);
    ::setenv("LOCKSTEP_DEVICE", "cpu", 0);  // a test that needs GPUs, or lockrun's search for them, unsets it
    ::putenv(const_cast<char*>(mark_.c_str()));
    for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
    for (const std::string& name : options.unset) ::unsetenv(name.c_str());
    if (!options.missing_calls.empty() && !refuse_system_calls(options.missing_calls, ENOSYS)) ::_exit(126);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(input);
}

Child::~Child() {
  for (const pid_t left : alive()) ::kill(left, SIGKILL);
  if (!reaped_) ::waitpid(pid_, nullptr, 0);
  ::close(output_);
  ::close(errors_);
}

void Child::signal(int number) const { ::kill(pid_, number); }

int Child::wait(Milliseconds timeout) {
  int status = 0;
  reaped_ = poll_until([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, timeout);
  if (!reaped_) {
    ADD_FAILURE() << "still running after " << timeout.count() << " ms; stdout:\n"
                  << output() << "stderr:\n"
                  << errors();
    return -1;
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool Child::has_ended() const {
  siginfo_t info{};
  return reaped_ ||
         (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0);
}

std::string Child::output() const { return contents(output_); }
std::string Child::errors() const { return contents(errors_); }

double Child::last_error_written() const {
  struct stat facts {};
  EXPECT_EQ(::fstat(errors_, &facts), 0);
  return static_cast<double>(facts.st_mtim.tv_sec) + 1e-9 * static_cast<double>(facts.st_mtim.tv_nsec);
}

bool poll_until(const std::function<bool()>& done, Milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(Milliseconds(5));
  }
  return true;
}

bool Child::wait_for_output(const std::string& text, Milliseconds timeout) const {
  return poll_until([&] { return output().find(text) != std::string::npos; }, timeout);
}

bool Child::wait_for_errors(const std::string& text, Milliseconds timeout) const {
  return poll_until([&] { return errors().find(text) != std::string::npos; }, timeout);
}

std::vector<pid_t> Child::alive() const {
  std::vector<pid_t> found;
  std::error_code ignored;  // processes start and end while we read
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = '\0' + read_file("/proc/" + name + "/environ");
    if (environment.find('\0' + mark_ + '\0') == std::string::npos) continue;
    if (!is_zombie(read_file("/proc/" + name + "/stat"))) found.push_back(std::stoi(name));
  }
  return found;
}

bool Child::nothing_left(Milliseconds timeout) const {
  return poll_until([&] { return alive().empty(); }, timeout);
}

}  // namespace lockstep::testing
