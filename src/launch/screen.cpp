#include "src/launch/screen.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace lockstep::launch {

namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::size_t kFilePiece = 1 << 16;  // a file takes any number of bytes without a reader

bool is_file(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode);
}

}  // namespace

// A pipe that poll() calls writable takes PIPE_BUF bytes without blocking, and in one piece.
OutputQueue::OutputQueue(int fd) : fd_(fd), piece_(is_file(fd) ? kFilePiece : PIPE_BUF) {}

void OutputQueue::append(std::string_view text) {
  if (error_ == 0) text_ += text;
}

void OutputQueue::write_some() {
  std::string_view piece = std::string_view(text_).substr(begin_, piece_);
  if (const std::size_t end = piece.rfind('\n'); end != std::string_view::npos) piece = piece.substr(0, end + 1);
  const ssize_t written = ::write(fd_, piece.data(), piece.size());
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
