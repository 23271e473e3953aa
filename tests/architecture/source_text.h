// The comments and the string literals of C++ code, for tests that read them.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

// Scans code character by character and collects its literals and comments.
class SourceText {
 public:
  struct Piece {
    int line;
    std::string text;
  };

  explicit SourceText(const std::string& code) : code_(code) {
    while (at_ < code_.size()) {
      if (starts_with("//"))
        take_line_comment();
      else if (starts_with("/*"))
        at_ = std::min(code_.find("*/", at_ + 2), code_.size() - 2) + 2;
      else if (starts_with("R\""))
        take_raw();
      else if (code_[at_] == '"')
        take_quoted('"');
      else if (code_[at_] == '\'' && (at_ == 0 || std::isalnum(static_cast<unsigned char>(code_[at_ - 1])) == 0))
        take_quoted('\'');  // not a digit separator
      else
        ++at_;
    }
  }

  const std::vector<Piece>& literals() const { return literals_; }  // without quotes, with escapes as written
  const std::vector<Piece>& comments() const { return comments_; }  // one line each, "// text"

 private:
  bool starts_with(const char* what) const { return code_.compare(at_, std::string(what).size(), what) == 0; }
  int line() {
    for (; counted_ < at_; ++counted_) line_ += code_[counted_] == '\n' ? 1 : 0;
    return line_;
  }
  void take_line_comment() {
    const std::size_t end = std::min(code_.find('\n', at_), code_.size());
    comments_.push_back({line(), code_.substr(at_, end - at_)});
    at_ = end;
  }
  void take_quoted(char quote) {
    const int begin = line();
    std::string literal;
    for (++at_; at_ < code_.size() && code_[at_] != quote; ++at_) {
      if (code_[at_] == '\\' && at_ + 1 < code_.size()) ++at_;
      literal += code_[at_];
    }
    ++at_;
    if (quote == '"') literals_.push_back({begin, literal});
  }
  void take_raw() {
    const int begin = line();
    const std::size_t open = code_.find('(', at_);
    const std::string end = ")" + code_.substr(at_ + 2, open - at_ - 2) + "\"";
    at_ = code_.find(end, open);
    literals_.push_back({begin, code_.substr(open + 1, at_ - open - 1)});
    at_ += end.size();
  }

  const std::string& code_;
  std::size_t at_ = 0, counted_ = 0;
  int line_ = 1;
  std::vector<Piece> literals_, comments_;
};
