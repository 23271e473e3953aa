#include "tests/train/disk_faults.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>

namespace {

using lockstep::testing::DiskCall;

struct Fault {
  std::string folder, name;
  DiskCall call;
  int error;  // 0: the call waits
};

std::mutex mutex;  // guards `fault` and `waiting`
std::condition_variable changed;
std::optional<Fault> fault;
int waiting = 0;
std::atomic<bool> has_fault{false};

void set_fault(std::optional<Fault> next) {
  const std::lock_guard lock(mutex);
  fault = std::move(next);
  has_fault = fault.has_value();
  changed.notify_all();
}

std::string path_of(int fd) {
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  return {path.data(), static_cast<std::size_t>(length < 0 ? 0 : length)};
}

bool is_hit(DiskCall call, const std::string& path) {
  return fault && fault->call == call && path.rfind(fault->folder, 0) == 0 && path.ends_with(fault->name);
}

// Does the call fail? Sets errno then.
bool fails(DiskCall call, const std::string& path) {
  std::unique_lock lock(mutex);
  if (!is_hit(call, path)) return false;
  if (fault->error != 0) {
    errno = fault->error;
    return true;
  }
  ++waiting;
  changed.notify_all();
  changed.wait(lock, [&] { return !is_hit(call, path); });
  --waiting;
  return false;
}

bool is_folder(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
}

template <typename Call> Call* the_real(const char* name) { return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name)); }

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  static auto* const real = the_real<ssize_t(int, const void*, size_t)>("write");
  return has_fault && fails(DiskCall::kWrite, path_of(fd)) ? -1 : real(fd, data, bytes);
}

int fsync(int fd) {
  static auto* const real = the_real<int(int)>("fsync");
  return has_fault && fails(is_folder(fd) ? DiskCall::kSyncFolder : DiskCall::kSync, path_of(fd)) ? -1 : real(fd);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = the_real<int(const char*, const char*)>("rename");
  return has_fault && fails(DiskCall::kRename, to) ? -1 : real(from, to);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = the_real<int(const char*, mode_t)>("mkdir");
  return has_fault && fails(DiskCall::kMakeFolder, path) ? -1 : real(path, mode);
}

}  // extern "C"

namespace lockstep::testing {

DiskFault::DiskFault(std::string folder, DiskCall call, int error, std::string name) {
  set_fault(Fault{std::move(folder), std::move(name), call, error});
}
DiskFault::~DiskFault() { set_fault(std::nullopt); }

SlowDisk::SlowDisk(std::string folder) { set_fault(Fault{std::move(folder), "", DiskCall::kWrite, 0}); }
SlowDisk::~SlowDisk() { set_fault(std::nullopt); }

void SlowDisk::await_write() const {
  std::unique_lock lock(mutex);
  if (!changed.wait_for(lock, std::chrono::seconds(60), [] { return waiting > 0; })) std::abort();
}

}  // namespace lockstep::testing
