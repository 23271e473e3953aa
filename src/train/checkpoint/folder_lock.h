// The lock of a folder of checkpoints, which its job holds from its first save on until its process ends.
#pragma once

#include <string>

#include "src/core/process/fd.h"

namespace lockstep {

// While it lives, no other process has the folder, on whatever machine. The lock is taken on a file, because NFS tells
// its server of files' locks only; the file says which job has it. The kernel lets go of the lock when the process
// ends, however it ends.
class FolderLock {
 public:
  static constexpr const char* kFile = ".lock";  // made, and left: another process may have it open by then

  // Waits some seconds for a process that was killed and is not gone yet. Throws FileError, which names the other job,
  // where one that runs has the folder, unless `takes_over`: that job's lock is of no use to it then. A file system
  // that knows no locks keeps nobody out on other machines: there the process that the file names is looked for on this
  // one.
  explicit FolderLock(const std::string& folder, bool takes_over = false);

  // False once the file was removed, or another job has taken the folder over.
  bool is_of(const std::string& folder) const;
  bool is_removed() const;  // with its folder: nobody can want it

 private:
  void take_over(const std::string& path);
  void write_owner() const;

  Fd fd_;
};

}  // namespace lockstep
