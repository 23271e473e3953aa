// Finds the processes of ranks that lockrun has started.
#pragma once

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {

inline std::string contents_of_proc(pid_t pid, const char* file) {
  std::ifstream stream("/proc/" + std::to_string(pid) + "/" + file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The process of that rank among the nodes of a job, once it exists; -1 if the job ends before, or after 20 s.
inline pid_t process_of_rank(const std::vector<const Child*>& nodes, int rank) {
  const std::string entry = '\0' + ("RANK=" + std::to_string(rank)) + '\0';
  pid_t found = -1;
  poll_until(
      [&] {
        bool has_ended = true;
        for (const Child* node : nodes) {
          has_ended = has_ended && node->has_ended();
          for (const pid_t pid : node->alive())
            if (('\0' + contents_of_proc(pid, "environ")).find(entry) != std::string::npos) found = pid;
        }
        return found > 0 || has_ended;
      },
      std::chrono::seconds(20));
  return found;
}
inline pid_t process_of_rank(const Child& job, int rank) {
  return process_of_rank(std::vector<const Child*>{&job}, rank);
}

// The processes that run this program now; a child of lockrun runs lockrun's until it has begun the rank's.
inline std::vector<pid_t> processes_of(const Child& job, const std::string& program) {
  std::vector<pid_t> processes;
  for (const pid_t pid : job.alive())
    if (contents_of_proc(pid, "cmdline").starts_with(program + '\0')) processes.push_back(pid);
  return processes;
}

}  // namespace lockstep::testing
