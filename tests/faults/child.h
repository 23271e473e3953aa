// A program under test as a child process: its output in memory, its end before a deadline, and a search for what it
// left.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace lockstep::testing {

struct ChildOptions {
  std::map<std::string, std::string> environment;  // set in addition
  std::vector<std::string> unset;
  std::string input;      // what stdin holds (a file)
  int output_fd = -1;     // >= 0: stdout goes there instead of into memory
  bool one_file = false;  // stderr goes where stdout does
  int network = -1;       // >= 0: a network namespace to run in, see NetworkLab
  std::vector<long> missing_calls =
      {};  // system calls that its kernel seems not to have, see can_refuse_system_calls()
};

class Child {
 public:
  Child(const std::vector<std::string>& command, const ChildOptions& options = {});
  ~Child();  // kills what is left of it, also what it started
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;

  // The exit code, 128 + signal; a test failure and -1 when it has not ended in time.
  int wait(std::chrono::milliseconds timeout = std::chrono::seconds(20));
  bool has_ended() const;
  std::string output() const;
  std::string errors() const;
  double last_error_written() const;  // seconds of the file system's clock, as st_mtim
  // Until `text` has appeared on stdout; false when it did not in time.
  bool wait_for_output(const std::string& text, std::chrono::milliseconds timeout = std::chrono::seconds(20)) const;

  // Processes that carry this child's mark in their environment, other than zombies: what it started, and itself.
  std::vector<pid_t> alive() const;
  bool nothing_left(std::chrono::milliseconds timeout = std::chrono::seconds(5)) const;

 private:
  std::string mark_;
  int output_ = -1, errors_ = -1;
  pid_t pid_ = -1;
  bool reaped_ = false;
};

}  // namespace lockstep::testing
