// A job that has ended must not leave these things: processes, shared memory, half a checkpoint.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {

class ThingsLeft {
 public:
  explicit ThingsLeft(std::string checkpoint_folder = "");

  // Records the shared memory that the job's processes hold now. Returns whether they hold some.
  bool note_memory(const Child& job);
  // Describes what is left of the jobs, once processes have had five seconds to end; empty: nothing. With
  // `killed_amid_saving`, an incomplete checkpoint that a killed process left is ignored, as it may stay until the next
  // save.
  std::vector<std::string> after(const std::vector<const Child*>& jobs, bool killed_amid_saving = false) const;

 private:
  std::string folder_;
  std::set<std::string> shm_before_;  // names in /dev/shm
  std::set<std::string> memory_;      // device and inode of unnamed segments
};

}  // namespace lockstep::testing
