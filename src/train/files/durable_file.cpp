#include "src/train/files/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <random>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/process/regular_file.h"

namespace lockstep::train {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // hashed while it is in the cache

Fd open_new(const std::string& path) { return Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)); }

Fd open_nameless(const std::string& folder) {
  return Fd(open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644));
}

bool link_nameless(const Fd& file, const std::string& path) {
  const std::string self = fmt::format("/proc/self/fd/{}", file.get());
  return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

// Does the file system lack the operation?
bool is_unsupported(int error) { return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS; }

// A name next to `path` for one call. Two processes get different names, even on two machines.
std::string name_beside(const std::string& path) {
  static std::atomic<std::uint64_t> count = 0;
  return fmt::format("{}.writing-{}-{}-{:08x}", path, getpid(), ++count, std::random_device()());
}

Fd open_folder(const std::string& path) { return Fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); }

}  // namespace

DurableFile::DurableFile(const std::string& path, const std::string& born_in, std::atomic<std::uint64_t>* progress)
    : path_(path),
      has_name_(born_in.empty()),
      fd_(born_in.empty() ? open_new(path) : open_nameless(born_in)),
      progress_(progress) {
  if (!fd_) fail("cannot be made");
}

void DurableFile::fail(const char* what) const { throw FileError("{}: {}: {}", path_, what, std::strerror(errno)); }

void DurableFile::write(std::span<const std::byte> data) {
  bytes_ += data.size();
  while (!data.empty()) {
    auto piece = data.first(std::min(data.size(), kPiece));
    data = data.subspan(piece.size());
    hash_.update(piece);
    while (!piece.empty()) {
      const ssize_t written = ::write(fd_.get(), piece.data(), piece.size());
      if (written < 0 && errno != EINTR) fail("cannot be written");
      if (written <= 0) continue;
      piece = piece.subspan(static_cast<std::size_t>(written));
      if (progress_ != nullptr) *progress_ += static_cast<std::uint64_t>(written);
    }
  }
}

WrittenFile DurableFile::finish() {
  if (fsync(fd_.get()) != 0) fail("cannot be synced");
  if (has_name_) close();
  return {bytes_, crypto::hex(hash_.finish())};
}

void DurableFile::give_name() {
  if (!link_nameless(fd_, path_)) fail("cannot be named");
  // A second sync is needed: btrfs logs nothing when a file without a name is synced, so that after a loss of power the
  // name would belong to an empty file.
  if (fsync(fd_.get()) != 0) fail("cannot be synced");
  close();
}

// Some file systems (NFS, quotas) report errors only here. After EINTR the descriptor is closed, too.
void DurableFile::close() {
  if (::close(fd_.release()) != 0 && errno != EINTR) fail("cannot be closed");
}

bool has_nameless_files(const std::string& free_path) {
  const Fd file = open_nameless(std::filesystem::path(free_path).parent_path().string());
  return file && link_nameless(file, free_path) && unlink(free_path.c_str()) == 0;
}

WrittenFile write_durably(const std::string& path, std::string_view text) {
  DurableFile file(path);
  file.write(text);
  return file.finish();
}

void sync_folder(const std::string& path) {
  const Fd fd = open_folder(path);
  if (fd && fsync(fd.get()) == 0) return;
  const std::string reason = std::strerror(errno);
  if (!fd || !is_unsupported(errno)) throw FileError("{}: the folder cannot be synced: {}", path, reason);
  static std::atomic<bool> has_warned = false;
  if (!has_warned.exchange(true))
    log::warn(
        "{}: its file system does not sync folders ({}): what is saved there survives the end of a process, but after "
        "a loss of power the newest files may be missing",
        path, reason);
}

void rename_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return;
  const bool cannot_replace =
      errno == EEXIST || errno == ENOTEMPTY || errno == EPERM || errno == EXDEV || is_unsupported(errno);
  const char* const reason = std::strerror(errno);
  throw FileError("{}: cannot be renamed to {}: {}{}", from, to, reason,
                  cannot_replace ? ": save in a folder on a file system where a rename replaces the old file, such as "
                                   "a local disk, NFS or Lustre, not on a mounted object store"
                                 : ": make the folder and its disk writable, or save in another folder");
}

void replace_durably(const char* caller, const std::string& path, const std::function<void(DurableFile&)>& write) {
  namespace fs = std::filesystem;
  const std::string parent = fs::path(path).parent_path().string(), folder = parent.empty() ? "." : parent;
  const std::string temporary = name_beside(path);
  std::error_code ignored;  // for a folder without permission: the next call reports it
  if (!fs::is_directory(folder, ignored))
    throw FileError("{}: {}: cannot be made: there is no folder {}", caller, path, folder);
  if (fs::is_directory(path, ignored)) throw FileError("{}: {}: is a folder, expected a file's name", caller, path);
  const std::string born_in = has_nameless_files(temporary) ? folder : "";
  try {
    DurableFile file(temporary, born_in);
    write(file);
    file.finish();
    if (!born_in.empty()) file.give_name();
    rename_file(temporary, path);
    sync_folder(folder);
  } catch (...) {
    fs::remove(temporary, ignored);
    throw;
  }
}

ReadFile read_file(const std::string& path, const FileSize& expected) {
  const RegularFile file = open_regular_file(path);
  if (file.bytes < expected.least || file.bytes > expected.most)
    throw FileError("{}: is damaged: it has {} bytes, expected {}", path, file.bytes, expected.text());
  ReadFile result;
  try {
    result.data.resize(file.bytes);
  } catch (const std::bad_alloc&) {
    throw NoMemoryForFile("{}: its {} bytes do not fit into memory", path, file.bytes);
  }
  crypto::Sha256 hash;
  std::span<std::byte> left(result.data);
  while (!left.empty()) {
    const auto piece = left.first(std::min(left.size(), kPiece));
    if (const std::size_t got = read_some(file.fd, piece.data(), piece.size(), path); got != piece.size())
      throw FileError("{}: only {} of {} bytes could be read", path, file.bytes - left.size() + got, file.bytes);
    hash.update(piece);
    left = left.subspan(piece.size());
  }
  result.sha256 = crypto::hex(hash.finish());
  return result;
}

}  // namespace lockstep::train
