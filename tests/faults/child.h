// Runs a program under test as a child process, with its output in memory, a deadline for its end, and a search for
// processes that it left.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::testing {

struct ChildOptions {
  std::map<std::string, std::string> environment;  // set in addition to the inherited ones
  std::vector<std::string> unset;
  std::string input;      // the contents of stdin (a file)
  int output_fd = -1;     // >= 0: stdout goes there instead of into memory
  bool one_file = false;  // stderr goes to the same place as stdout
  int network = -1;       // >= 0: the network namespace in which it runs, see NetworkLab
  // System calls that its kernel pretends not to have, see can_refuse_system_calls().
  std::vector<long> missing_calls = {};
};

class Child {
 public:
  Child(const std::vector<std::string>& command, const ChildOptions& options = {});
  ~Child();  // kills the remaining processes, also those that it started
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;

  // Returns the exit code, or 128 + signal; fails the test and returns -1 if it has not ended in time.
  int wait(std::chrono::milliseconds timeout = std::chrono::seconds(20));
  bool has_ended() const;
  std::string output() const;
  std::string errors() const;
  double last_error_written() const;  // in seconds of the file system's clock, as st_mtim
  // Wait until `text` has appeared on stdout or stderr; return false if it did not in time.
  bool wait_for_output(const std::string& text, std::chrono::milliseconds timeout = std::chrono::seconds(20)) const;

  bool wait_for_errors(const std::string& text, std::chrono::milliseconds timeout = std::chrono::seconds(20)) const;

  // The processes, other than zombies, that carry this child's mark in their environment: itself and those that it
  // started.
  std::vector<pid_t> alive() const;
  bool nothing_left(std::chrono::milliseconds timeout = std::chrono::seconds(5)) const;

 private:
  std::string mark_;
  int output_ = -1, errors_ = -1;
  pid_t pid_ = -1;
  bool reaped_ = false;
};

// Calls done() again and again until it returns true; returns false if it did not in time.
bool poll_until(const std::function<bool()>& done, std::chrono::milliseconds timeout);

}  // namespace lockstep::testing
