// Faults of the disk for a test program: its calls of write, fsync, rename and mkdir are intercepted, and fail or wait
// below one folder.
#pragma once

#include <string>

namespace lockstep::testing {

enum class DiskCall { kWrite, kSync, kSyncFolder, kRename, kMakeFolder };

// While it lives, such calls on files below the folder fail with the error. One fault at a time.
class DiskFault {
 public:
  // `name`: only files whose path ends with it.
  DiskFault(std::string folder, DiskCall call, int error, std::string name = "");
  ~DiskFault();
  DiskFault(const DiskFault&) = delete;
  DiskFault& operator=(const DiskFault&) = delete;
};

// While it lives, writes to files below the folder wait. Its end lets them go.
class SlowDisk {
 public:
  explicit SlowDisk(std::string folder);
  ~SlowDisk();
  SlowDisk(const SlowDisk&) = delete;
  SlowDisk& operator=(const SlowDisk&) = delete;
  // Blocks until a write waits.
  void await_write() const;
};

}  // namespace lockstep::testing
