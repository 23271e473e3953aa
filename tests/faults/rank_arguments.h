// A test program's arguments, all of the form name=value, and the failures that it can simulate.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "lockstep/core/error.h"

namespace lockstep::testing {

class RankArguments {
 public:
  RankArguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      const auto equals = argument.find('=');
      if (equals == std::string::npos) throw InvalidArgument("'{}' is not name=value", argument);
      values_[argument.substr(0, equals)] = argument.substr(equals + 1);
    }
  }
  std::string text(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? "" : found->second;
  }
  int number(const std::string& name, int otherwise) const {
    const std::string value = text(name);
    return value.empty() ? otherwise : std::stoi(value);
  }

 private:
  std::map<std::string, std::string> values_;
};

// Waits while the file exists that the argument `hold` names, at most half an hour: the test may have been killed.
inline void wait_while_held(const RankArguments& arguments) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(30);
  for (const std::string file = arguments.text("hold");
       !file.empty() && std::filesystem::exists(file) && std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

[[noreturn]] inline void die_by(int signal) {
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  std::signal(signal, SIG_DFL);  // a sanitizer has its own handler
  std::raise(signal);
  std::abort();
}

// exit (code 3), exit:CODE, throw, segv, kill, stop (SIGSTOP), stay_away, memory (takes all that there is); leave:
// returns true, to end successfully now. Any other word does nothing.
inline bool go_wrong(const std::string& how) {
  if (how.rfind("exit", 0) == 0) ::_exit(how == "exit" ? 3 : std::stoi(how.substr(5)));
  if (how == "throw") throw Error("this rank has had enough");
  if (how == "segv") die_by(SIGSEGV);
  if (how == "kill") die_by(SIGKILL);
  if (how == "stop") std::raise(SIGSTOP);
  for (constexpr std::size_t kBytes = 1 << 20; how == "memory";) {
    volatile char* const memory = new char[kBytes];
    for (std::size_t i = 0; i < kBytes; i += 4096) memory[i] = 1;
  }
  if (how == "stay_away") std::this_thread::sleep_for(std::chrono::minutes(10));
  return how == "leave";
}

}  // namespace lockstep::testing
