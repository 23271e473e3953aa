#include "src/launch/line_cutter.h"

#include <algorithm>

namespace lockstep::launch {

Piece LineCutter::line(bool whole) {
  Piece piece{Piece::Kind::kLine, style_.prefix + pending_};
  if (whole || !style_.unchanged) piece.text += '\n';
  pending_.clear();
  return piece;
}

void LineCutter::carriage_return() {
  redrawn_ = true;
  if (!pending_.empty()) status_ = std::move(pending_);
  pending_.clear();
}

void LineCutter::end_line(std::vector<Piece>& out) {
  if (!redrawn_) {
    out.push_back(line(true));
    return;
  }
  out.push_back({Piece::Kind::kStatusEnd, pending_.empty() ? std::move(status_) : std::move(pending_)});
  pending_.clear();
  status_.clear();
  redrawn_ = false;
}

void LineCutter::overflow(std::vector<Piece>& out) {
  if (redrawn_)
    carriage_return();
  else
    out.push_back(line(false));
}

std::vector<Piece> LineCutter::feed(std::string_view bytes) {
  std::vector<Piece> out;
  const std::string_view controls = style_.redraw ? "\r\n" : "\n";
  while (!bytes.empty()) {
    const std::size_t text = std::min({bytes.find_first_of(controls), bytes.size(), style_.max_line - pending_.size()});
    if (text > 0) {
      pending_ += bytes.substr(0, text);
      bytes.remove_prefix(text);
      if (pending_.size() == style_.max_line) overflow(out);
      continue;
    }
    if (bytes[0] == '\n')
      end_line(out);
    else if (redrawn_ || bytes.substr(0, 2) != "\r\n")  // "\r\n" is a plain end of line
      carriage_return();
    bytes.remove_prefix(1);
  }
  if (redrawn_) out.push_back({Piece::Kind::kStatus, pending_.empty() ? status_ : pending_});
  return out;
}

std::vector<Piece> LineCutter::finish() {
  std::vector<Piece> out;
  if (redrawn_)
    end_line(out);
  else if (!pending_.empty())
    out.push_back(line(false));
  return out;
}

void LastLines::feed(std::string_view bytes) {
  for (const char byte : bytes) {
    if (byte == '\n') {
      if (lines_.size() == max_lines_) lines_.erase(lines_.begin());
      lines_.push_back(std::move(pending_));
      pending_.clear();
    } else if (pending_.size() < max_bytes_) {
      pending_ += byte;
    }
  }
}

std::vector<std::string> LastLines::lines() const {
  std::vector<std::string> all = lines_;
  if (!pending_.empty()) all.push_back(pending_);
  return all;
}

}  // namespace lockstep::launch
