#include "src/launch/output/rank_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::launch {

namespace {

// Both ends are invalid if the system has no pseudo terminals left.
Pipe make_terminal(int columns) {
  Fd ours(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  char name[64];
  if (!ours || ::grantpt(ours.get()) != 0 || ::unlockpt(ours.get()) != 0 ||
      ::ptsname_r(ours.get(), name, sizeof(name)) != 0)
    return {};
  Fd ranks(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios modes{};
  if (!ranks || ::tcgetattr(ranks.get(), &modes) != 0) return {};
  ::cfmakeraw(&modes);
  if (::tcsetattr(ranks.get(), TCSANOW, &modes) != 0) return {};
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  if (columns > 0) ::ioctl(ranks.get(), TIOCSWINSZ, &size);
  return {std::move(ours), std::move(ranks)};
}

Pipe with_reading_unblocked(Pipe stream) {
  ::fcntl(stream.read_end.get(), F_SETFL, ::fcntl(stream.read_end.get(), F_GETFL) | O_NONBLOCK);
  return stream;
}

// The name of the rank's end in /proc/PID/fd.
std::string name_of_write_end(int read_end) {
  char name[64];
  if (::ptsname_r(read_end, name, sizeof(name)) == 0) return name;
  struct stat facts {};
  return ::fstat(read_end, &facts) == 0 ? fmt::format("pipe:[{}]", facts.st_ino) : "";
}

bool holds(const std::filesystem::path& process, const std::string& wanted) {
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(process / "fd", failure))
    if (std::filesystem::read_symlink(entry.path(), failure) == wanted) return true;
  return false;
}

}  // namespace

Pipe make_terminal_stream(int columns) {
  Pipe terminal = make_terminal(columns);
  return terminal.read_end ? with_reading_unblocked(std::move(terminal)) : make_pipe_stream();
}

Pipe make_pipe_stream() { return with_reading_unblocked(make_pipe()); }

std::string holder_of(int read_end) {
  const std::string wanted = name_of_write_end(read_end);
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", failure)) {
    const std::string pid = entry.path().filename();
    if (std::atol(pid.c_str()) <= 0 || std::atol(pid.c_str()) == ::getpid() || !holds(entry.path(), wanted)) continue;
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    return fmt::format("pid {} ({})", pid, name);
  }
  return "";
}

}  // namespace lockstep::launch
