// Small disks and other files for a test: mounts that only this process and its children see, and that end with them.
#pragma once

#include <sys/mount.h>

#include <sched.h>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep::testing {

// Gives this process its own mounts, once. Returns why that is not possible, or "".
inline const std::string& obstacle_to_private_mounts() {
  static const std::string obstacle = [] {
    if (::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0)
      return std::string();
    return std::string("cannot mount a small disk (it takes root): ") + std::strerror(errno);
  }();
  return obstacle;
}

class SmallDisk {
 public:
  // Mounts over the folder, which must exist. Use it only if obstacle_to_private_mounts() has returned "".
  SmallDisk(std::string folder, std::size_t bytes) : folder_(std::move(folder)) {
    const std::string options = "size=" + std::to_string(bytes);
    if (::mount("lockstep-test", folder_.c_str(), "tmpfs", 0, options.c_str()) != 0)
      throw std::runtime_error("cannot mount tmpfs on " + folder_ + ": " + std::strerror(errno));
  }
  ~SmallDisk() { ::umount2(folder_.c_str(), MNT_DETACH); }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  std::string folder_;
};

// Mounts one file in place of another.
class BoundFile {
 public:
  BoundFile(const std::string& file, std::string over) : over_(std::move(over)) {
    if (::mount(file.c_str(), over_.c_str(), nullptr, MS_BIND, nullptr) != 0)
      throw std::runtime_error("cannot bind " + file + " to " + over_ + ": " + std::strerror(errno));
  }
  ~BoundFile() { ::umount2(over_.c_str(), MNT_DETACH); }
  BoundFile(const BoundFile&) = delete;
  BoundFile& operator=(const BoundFile&) = delete;

 private:
  std::string over_;
};

}  // namespace lockstep::testing
