#include "src/launch/supervise/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::launch {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error("launch: cannot make a pipe: {}", std::strerror(errno));
  return {Fd(ends[0]), Fd(ends[1])};
}

bool write_all(int fd, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace lockstep::launch
