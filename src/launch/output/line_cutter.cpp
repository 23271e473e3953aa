#include "src/launch/output/line_cutter.h"

#include <algorithm>

namespace lockstep::launch {

namespace {

// The number of bytes to take so that no character is cut; all of them if they are not UTF-8.
std::size_t whole_characters(std::string_view text) {
  constexpr std::size_t kLongest = 4;
  for (std::size_t back = 1; back <= std::min(kLongest, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // continuation byte
    const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back && back < text.size() ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace

Piece LineCutter::line(bool whole) {
  Piece piece{Piece::Kind::kLine, is_cut_ && !style_.unchanged ? kContinued + pending_ : std::move(pending_)};
  if (whole || !style_.unchanged) piece.text += '\n';
  pending_.clear();
  is_cut_ = false;
  return piece;
}

void LineCutter::carriage_return() {
  redrawn_ = true;
  if (!pending_.empty()) status_ = std::move(pending_);
  pending_.clear();
}

void LineCutter::end_line(std::vector<Piece>& out) {
  if (!redrawn_) {
    const bool has_ended = is_cut_ && pending_.empty() && !style_.unchanged;  // it was cut exactly at its end
    if (!has_ended) out.push_back(line(true));
    is_cut_ = false;
    return;
  }
  out.push_back({Piece::Kind::kStatusEnd, pending_.empty() ? std::move(status_) : std::move(pending_)});
  pending_.clear();
  status_.clear();
  redrawn_ = false;
}

void LineCutter::overflow(std::vector<Piece>& out) {
  if (redrawn_) return carriage_return();
  const std::size_t whole = whole_characters(pending_);
  std::string rest = pending_.substr(whole);
  pending_.resize(whole);
  out.push_back(line(false));
  pending_ = std::move(rest);
  is_cut_ = true;
}

std::vector<Piece> LineCutter::feed(std::string_view bytes) {
  std::vector<Piece> out;
  const std::string_view controls = style_.redraw ? "\r\n" : "\n";
  while (!bytes.empty()) {
    const std::size_t text =
        std::min({bytes.find_first_of(controls), bytes.size(), most() - std::min(pending_.size(), most() - 1)});
    if (text > 0) {
      pending_ += bytes.substr(0, text);
      bytes.remove_prefix(text);
      if (pending_.size() >= most()) overflow(out);
      continue;
    }
    if (bytes[0] == '\n')
      end_line(out);
    else if (redrawn_ || bytes.substr(0, 2) != "\r\n")  // "\r\n" is an ordinary end of line
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
