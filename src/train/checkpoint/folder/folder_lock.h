// The lock of a folder of checkpoints. A job holds it from its first save until its process ends.
#pragma once

#include <string>

#include "src/core/process/fd.h"

namespace lockstep::train {

// While it lives, no other process on any machine has the folder. The lock is on a file, because NFS passes only locks
// of files to its server; the file says which job has it. The kernel releases the lock when the process ends, however
// it ends.
class FolderLock {
 public:
  static constexpr const char* kFile = ".lock";  // is never removed, because another process may have it open

  // Waits some seconds for a process that was killed and has not ended yet. Throws FolderRefusal, which names the other
  // job, if a running job has the folder, unless `takes_over`: that job has lost its lock then. On a file system
  // without locks, jobs on other machines are not noticed; on this machine the process that the file names is looked
  // for.
  explicit FolderLock(const std::string& folder, bool takes_over = false);

  // False once the file was removed, or another job has taken the folder over.
  bool is_of(const std::string& folder) const;
  bool is_removed() const;  // with its folder, so that no other job can want it

 private:
  void take_over(const std::string& path);
  void write_owner() const;

  Fd fd_;
};

}  // namespace lockstep::train
