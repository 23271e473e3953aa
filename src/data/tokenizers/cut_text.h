// A text that pre-tokenizers cut into pieces, the words that a model gets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/data/unicode/text_pattern.h"

namespace lockstep::data {

// The fates of a delimiter, as `tokenizers` names them.
enum class CutBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class CutText {
 public:
  // One piece: the whole text, which must outlive the cutting. `begins_input`: it stands at the start of the input.
  void start(std::string_view text, bool begins_input) {
    text_ = text;
    begins_input_ = begins_input;
    pieces_.assign(text.empty() ? 0 : 1, Span{0, text.size()});
  }

  std::string_view text() const { return text_; }
  const std::vector<Span>& pieces() const { return pieces_; }
  bool begins_input(Span piece) const { return begins_input_ && piece.begin == 0; }

  // Replaces each piece by what cut(piece, cuts) gives to `cuts`. Empty pieces are left out.
  template <typename Cut> void cut_pieces(Cut&& cut) {
    cuts_.clear();
    for (const Span piece : pieces_) cut(piece, cuts_);
    std::swap(pieces_, cuts_);
  }

  // Replaces the text of each piece by what append(piece, text) appends to `text`.
  template <typename Append> void rewrite_pieces(Append&& append) {
    std::string& written = written_[next_];
    next_ = 1 - next_;  // the other one holds the present text
    written.clear();
    for (Span& piece : pieces_) {
      const std::size_t begin = written.size();
      append(piece, written);
      piece = {begin, written.size()};
    }
    text_ = written;
  }

 private:
  std::string_view text_;
  bool begins_input_ = false;
  std::vector<Span> pieces_, cuts_;
  std::string written_[2];
  int next_ = 0;
};

// Takes the parts of one piece in order, delimiters and what is between them, and appends the new pieces to `cuts`.
class PieceCutter {
 public:
  PieceCutter(CutBehavior behavior, std::vector<Span>& cuts) : behavior_(behavior), cuts_(cuts), first_(cuts.size()) {}

  // A delimiter may be empty: it parts its neighbours.
  void add(Span part, bool is_delimiter) {
    has_empty_ = has_empty_ || part.size() == 0;
    const bool has_last = cuts_.size() > first_;
    const bool joins =
        (behavior_ == CutBehavior::kContiguous && has_last && is_delimiter == last_is_delimiter_) ||
        (behavior_ == CutBehavior::kMergedWithPrevious && has_last && is_delimiter && !last_is_delimiter_) ||
        (behavior_ == CutBehavior::kMergedWithNext && has_last && !is_delimiter && last_is_delimiter_);
    if (joins)
      cuts_.back().end = part.end;
    else if (behavior_ != CutBehavior::kRemoved || !is_delimiter)
      cuts_.push_back(part);
    last_is_delimiter_ = is_delimiter;
  }

  // After the last part: leaves out empty pieces.
  void finish() {
    const auto first = cuts_.begin() + static_cast<std::ptrdiff_t>(first_);
    if (has_empty_)
      cuts_.erase(std::remove_if(first, cuts_.end(), [](Span cut) { return cut.size() == 0; }), cuts_.end());
  }

 private:
  CutBehavior behavior_;
  std::vector<Span>& cuts_;
  std::size_t first_;
  bool last_is_delimiter_ = false, has_empty_ = false;
};

}  // namespace lockstep::data
