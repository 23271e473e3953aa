#include "src/train/checkpoint/folder/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/core/error.h"
#include "src/train/checkpoint/folder/folder_refusal.h"
#include "src/train/checkpoint/folder/job.h"
#include "src/train/files/durable_file.h"

namespace lockstep::train {

namespace {

using checkpoint::Job;

constexpr std::chrono::seconds kPatience(3);  // for a process that was killed and has not ended yet

std::string path_in(const std::string& folder) { return (std::filesystem::path(folder) / FolderLock::kFile).string(); }

// The job that the file names. Its id is empty if the file names no job, as in older versions.
Job owner_in(const Fd& file) {
  std::array<char, 1024> text{};
  const ssize_t bytes = ::pread(file.get(), text.data(), text.size(), 0);
  return checkpoint::job_of(nlohmann::json::parse(text.data(), text.data() + std::max<ssize_t>(bytes, 0), nullptr,
                                                  /*allow_exceptions=*/false));
}

[[noreturn]] void refuse(const std::string& folder, const Job& owner) {
  throw checkpoint::FolderRefusal(
      "{}: {} is running and writes its checkpoints there: give each job a folder of its own, or wait until that one "
      "has ended and resume from its checkpoint, or take the folder away from it with .overwrite = true, by which its "
      "next save is an error. If its machine has failed, the file server may hold the lock for some minutes",
      folder, owner.id.empty() ? "another job, which has left no name," : owner.text());
}

enum class Outcome { kHeld, kByAnother, kUnknown };

Outcome try_lock(const Fd& file) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Outcome::kByAnother;
    if (errno != EINTR) return Outcome::kUnknown;  // the file system has no locks
  }
  return Outcome::kHeld;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder, bool takes_over) {
  const std::string path = path_in(folder);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    fd_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!fd_) throw FileError("{}: cannot be opened for writing: {}", path, std::strerror(errno));
    const Outcome outcome = try_lock(fd_);
    const Job owner = owner_in(fd_);
    const bool is_taken = outcome == Outcome::kByAnother || (outcome == Outcome::kUnknown && owner.runs_on_this_host());
    if (!is_taken && is_of(folder)) break;
    if (is_taken && takes_over) {
      take_over(path);
      return;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      if (is_taken) refuse(folder, owner);
      throw FileError("{}: cannot be kept locked: the file is replaced again and again, or cannot be read", path);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  write_owner();
}

// A new file takes the place of the one that the other job has locked.
void FolderLock::take_over(const std::string& path) {
  const std::string next = fmt::format("{}.{}", path, ::getpid());
  ::unlink(next.c_str());
  fd_ = Fd(::open(next.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd_) throw FileError("{}: cannot be made: {}", next, std::strerror(errno));
  try_lock(fd_);
  write_owner();
  rename_file(next, path);
}

// Best effort: the lock works without it, and a full disk is reported when the checkpoint is written. A file with
// another text belongs to the user and stays as it is.
void FolderLock::write_owner() const {
  struct stat file {};
  if (::fstat(fd_.get(), &file) != 0 || !S_ISREG(file.st_mode) || (file.st_size != 0 && owner_in(fd_).id.empty()))
    return;
  const std::string text = nlohmann::json(checkpoint::this_job()).dump(-1, ' ', /*ensure_ascii=*/true) + "\n";
  if (::ftruncate(fd_.get(), 0) != 0 || ::pwrite(fd_.get(), text.data(), text.size(), 0) < 0) errno = 0;
}

bool FolderLock::is_of(const std::string& folder) const {
  struct stat mine {
  }, there{};
  return ::fstat(fd_.get(), &mine) == 0 && ::stat(path_in(folder).c_str(), &there) == 0 &&
         mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

bool FolderLock::is_removed() const {
  struct stat mine {};
  return ::fstat(fd_.get(), &mine) != 0 || mine.st_nlink == 0;
}

}  // namespace lockstep::train
