#include "src/train/durable_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep {

DurableFile::DurableFile(const std::string& path) : path_(path), fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
  if (fd_ < 0) fail("cannot be made");
}

DurableFile::~DurableFile() {
  if (fd_ >= 0) close(fd_);
}

void DurableFile::fail(const char* what) const { throw FileError("{}: {}: {}", path_, what, std::strerror(errno)); }

void DurableFile::write(std::span<const std::byte> data) {
  hash_.update(data);
  bytes_ += data.size();
  while (!data.empty()) {
    const ssize_t written = ::write(fd_, data.data(), data.size());
    if (written < 0 && errno != EINTR) fail("cannot be written");
    if (written > 0) data = data.subspan(static_cast<std::size_t>(written));
  }
}

WrittenFile DurableFile::finish() {
  if (fsync(fd_) != 0) fail("cannot be synced");
  const int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0) fail("cannot be closed");
  return {bytes_, crypto::hex(hash_.finish())};
}

WrittenFile write_durably(const std::string& path, std::string_view text) {
  DurableFile file(path);
  file.write(text);
  return file.finish();
}

void sync_folder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const int failure = errno;
  if (fd >= 0) close(fd);
  if (!synced) throw FileError("{}: the folder cannot be synced: {}", path, std::strerror(failure));
}

FolderLock::FolderLock(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) throw FileError("{}: the folder cannot be opened: {}", path, std::strerror(errno));
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(fd_);
  throw FileError("{}: another job is writing a checkpoint there: give each job a folder of its own", path);
}

FolderLock::~FolderLock() { close(fd_); }

void rename_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw FileError("{}: cannot be renamed to {}: {}", from, to, std::strerror(errno));
}

std::vector<std::byte> read_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) throw FileError("{}: cannot be opened: {}", path, std::strerror(errno));
  std::vector<std::byte> data;
  struct stat info {};
  const bool regular = fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode);
  if (regular) data.resize(static_cast<std::size_t>(info.st_size));
  const std::size_t got = regular ? std::fread(data.data(), 1, data.size(), file) : 0;
  std::fclose(file);
  if (!regular) throw FileError("{}: is no regular file", path);
  if (got != data.size()) throw FileError("{}: only {} of {} bytes could be read", path, got, data.size());
  return data;
}

}  // namespace lockstep
