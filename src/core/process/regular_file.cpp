#include "src/core/process/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

const char* kind_of(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISSOCK(mode)) return "a socket";
  return "of an unknown kind";
}

void check_is_regular(mode_t mode, const std::string& path) {
  if (!S_ISREG(mode))
    throw FileError("{}: is {}, expected a regular file: put the file itself or a link to it there", path,
                    kind_of(mode));
}

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw FileError("{}: {}: {}", path, what, std::strerror(errno));
}

}  // namespace

RegularFile open_regular_file(const std::string& path) {
  struct stat info {};
  // Checked before opening, which has side effects on some devices, and again afterwards, because the name may refer to
  // another file by then.
  if (::stat(path.c_str(), &info) != 0) fail(path, "cannot be opened");
  check_is_regular(info.st_mode, path);
  RegularFile file{Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK))};
  if (!file.fd || ::fstat(file.fd.get(), &info) != 0) fail(path, "cannot be opened");
  check_is_regular(info.st_mode, path);
  file.bytes = static_cast<std::uint64_t>(info.st_size);
  return file;
}

std::size_t read_some(const Fd& file, void* data, std::size_t bytes, const std::string& path) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(file.get(), static_cast<char*>(data) + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read");
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace lockstep
