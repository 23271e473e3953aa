#include "src/launch/output/screen.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

namespace lockstep::launch {

namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::size_t kFilePiece = 1 << 16;  // a file accepts any number of bytes, as it needs no reader

mode_t kind_of(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 ? facts.st_mode & S_IFMT : 0;
}

// Opens the same terminal or pipe again, with its own non-blocking file description: O_NONBLOCK on that of `fd` would
// also apply to the shell and all others who share it. Not for the master side of a pseudo terminal: opening it makes a
// new terminal.
Fd opened_again(int fd) {
  char name[64];
  const bool is_terminal = ::isatty(fd) != 0 && ::ptsname_r(fd, name, sizeof(name)) != 0;
  if (!is_terminal && kind_of(fd) != S_IFIFO) return Fd();
  return Fd(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

// A pipe that poll() reports as writable accepts PIPE_BUF bytes without blocking, and atomically.
OutputQueue::OutputQueue(int fd)
    : fd_(fd), own_(opened_again(fd)), piece_(kind_of(fd) == S_IFREG ? kFilePiece : PIPE_BUF) {
  if (kind_of(fd) == S_IFSOCK) way_ = Way::kSend;
  if (!own_ && ::isatty(fd) != 0) way_ = Way::kByteByByte;
}

void OutputQueue::append(std::string_view text) {
  if (error_ == 0) text_ += text;
}

// A terminal that poll() reports as writable accepts one byte without blocking; a second one may have to wait if the
// first is a tab.
ssize_t OutputQueue::write(std::string_view piece) const {
  if (way_ == Way::kSend) return ::send(fd_, piece.data(), piece.size(), MSG_DONTWAIT);
  if (way_ == Way::kWrite) return ::write(fd(), piece.data(), piece.size());
  pollfd polled{fd_, POLLOUT, 0};
  std::size_t written = 0;
  do {
    if (const ssize_t now = ::write(fd_, piece.data() + written, 1); now <= 0)
      return written > 0 ? static_cast<ssize_t>(written) : now;
    ++written;
  } while (written < piece.size() && ::poll(&polled, 1, 0) > 0);
  return static_cast<ssize_t>(written);
}

void OutputQueue::write_some() {
  std::string_view piece = std::string_view(text_).substr(begin_, piece_);
  if (const std::size_t end = piece.rfind('\n'); end != std::string_view::npos) piece = piece.substr(0, end + 1);
  const ssize_t written = write(piece);
  if (written < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (written < 0) {
    error_ = errno;
    begin_ = text_.size();
  } else {
    begin_ += static_cast<std::size_t>(written);
  }
  if (begin_ < text_.size() && begin_ < kLimit) return;
  text_.erase(0, begin_);
  begin_ = 0;
}

bool is_one_file(int first, int second) {
  struct stat one {
  }, other{};
  if (::fstat(first, &one) != 0 || ::fstat(second, &other) != 0) return false;
  const bool is_one_terminal = ::isatty(first) != 0 && ::isatty(second) != 0 && one.st_rdev == other.st_rdev;
  return is_one_terminal || (one.st_dev == other.st_dev && one.st_ino == other.st_ino);
}

void Screen::show(const Piece& piece, bool is_error) {
  OutputQueue& target = queue(is_error);
  const bool beside_status = !status_.empty() && &target == &output_;
  if (beside_status) target.append(kEraseLine);
  switch (piece.kind) {
    case Piece::Kind::kLine:
      target.append(piece.text);
      if (beside_status) target.append(status_);
      break;
    case Piece::Kind::kStatus:
      status_ = piece.text;
      target.append(status_);
      break;
    case Piece::Kind::kStatusEnd:
      status_.clear();
      target.append(piece.text);
      target.append("\n");
      break;
  }
}

}  // namespace lockstep::launch
