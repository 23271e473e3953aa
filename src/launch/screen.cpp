#include "src/launch/screen.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace lockstep::launch {

namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

}  // namespace

void OutputQueue::append(std::string_view text) {
  if (error_ == 0) text_ += text;
}

void OutputQueue::write_some() {
  // A pipe that poll() calls writable takes PIPE_BUF bytes without blocking.
  const ssize_t written = ::write(fd_, text_.data() + begin_, std::min<std::size_t>(text_.size() - begin_, PIPE_BUF));
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
