// Cuts one rank's output into complete lines. Pure: bytes in, pieces out. The rank's prefix is added later.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

struct Piece {
  enum class Kind {
    kLine,       // text and newline
    kStatus,     // the current state of a redrawn line: no newline
    kStatusEnd,  // its last state, which stays: no newline
  };
  Kind kind = Kind::kLine;
  std::string text;

  bool operator==(const Piece&) const = default;
};

struct CutStyle {
  bool unchanged = false;           // add nothing (no newline to a last or over-long line): --no-prefix
  bool redraw = false;              // a line with '\r' is a status that the program redraws
  std::size_t max_line = 16 << 20;  // a longer line is cut here, between two UTF-8 characters
};

// The prefix of the rest of a line that was cut.
inline constexpr const char* kContinued = "(continued) ";

class LineCutter {
 public:
  explicit LineCutter(CutStyle style) : style_(std::move(style)) {}

  std::vector<Piece> feed(std::string_view bytes);
  std::vector<Piece> finish();  // a last line may lack its newline

 private:
  void end_line(std::vector<Piece>& out);
  void carriage_return();
  std::size_t most() const { return redrawn_ ? std::min(style_.max_line, kMaxStatus) : style_.max_line; }
  void overflow(std::vector<Piece>& out);
  Piece line(bool whole);

  static constexpr std::size_t kMaxStatus = 1 << 16;  // no terminal shows more

  CutStyle style_;
  std::string pending_;
  std::string status_;    // as last drawn
  bool redrawn_ = false;  // the current line has had a '\r'
  bool is_cut_ = false;   // the current line began in an earlier piece
};

// The last lines of a stream, with limits on number and length, for a summary.
class LastLines {
 public:
  explicit LastLines(std::size_t lines = 12, std::size_t line_bytes = 400)
      : max_lines_(lines), max_bytes_(line_bytes) {}
  void feed(std::string_view bytes);
  std::vector<std::string> lines() const;

 private:
  std::size_t max_lines_, max_bytes_;
  std::vector<std::string> lines_;
  std::string pending_;
};

}  // namespace lockstep::launch
