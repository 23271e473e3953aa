#include "src/core/process/standard_streams.h"

#include <fcntl.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <initializer_list>

namespace lockstep {

// open() takes the lowest free number: in this order, the one that is checked.
void occupy_standard_streams() noexcept {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF &&
        ::open("/dev/null", stream == STDIN_FILENO ? O_RDONLY : O_WRONLY) < 0)
      return;
}

void write_output_by_lines() noexcept {
  const bool is_unbuffered = ::__fbufsize(stdout) == 1;
  if (!is_unbuffered && ::__flbf(stdout) == 0) (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

}  // namespace lockstep
