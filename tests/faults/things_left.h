// What a job that has ended may not leave: processes, shared memory, half a checkpoint.
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

  // Remembers the shared memory that the job's processes hold now. True: they hold some.
  bool note_memory(const Child& job);
  // What is left of the jobs, in words, once processes have had five seconds to go; empty: nothing. What a process that
  // is killed amid saving leaves of a checkpoint is no checkpoint, and may stay until the next save when
  // `killed_amid_saving`.
  std::vector<std::string> after(const std::vector<const Child*>& jobs, bool killed_amid_saving = false) const;

 private:
  std::string folder_;
  std::set<std::string> shm_before_;  // names in /dev/shm
  std::set<std::string> memory_;      // device and inode of segments without a name
};

}  // namespace lockstep::testing
