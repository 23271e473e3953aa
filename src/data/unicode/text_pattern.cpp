#include "src/data/unicode/text_pattern.h"

#include <new>
#include <vector>

#include "lockstep/core/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace lockstep::data {

namespace {

// Unicode's White_Space: PCRE2's \s has U+180E besides.
constexpr std::string_view kSpaces = R"(\x09-\x0d\x20\x{85}\p{Z})";
// Oniguruma's \w: letters, marks, digits, connectors, the letters and numbers in circles and squares that are symbols,
// and the superscripts and fractions of Latin-1.
constexpr std::string_view kWords =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149})"
    R"(\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
constexpr std::string_view kHex = "0-9a-fA-F";

struct PosixClass {
  std::string_view name, members;
};
// Those with the same members everywhere. Oniguruma's other ones are properties that not every PCRE2 knows, and its
// [:word:] is not its \w.
constexpr PosixClass kPosixClasses[] = {{"space", kSpaces},         {"xdigit", kHex},       {"digit", R"(\p{Nd})"},
                                        {"blank", R"(\x09\p{Zs})"}, {"cntrl", R"(\p{Cc})"}, {"ascii", R"(\x00-\x7f)"}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex_digit(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Translation {
 public:
  explicit Translation(std::string_view expression) : from_(expression) {}

  std::string run() {
    while (at_ < from_.size()) {
      const char c = from_[at_];
      const std::size_t begin = to_.size();
      if (c == '\\') {
        escape();
        if (!in_class_) end_atom(begin);
      } else if (in_class_) {
        inside_class(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '(') {
        open_group();
      } else if (c == ')') {
        close_group();
      } else if (c == '|') {
        copy(1);
        is_start_ = true;
      } else if (c == '{') {
        interval();
      } else {
        const bool continues = (static_cast<unsigned char>(c) & 0xc0) == 0x80;  // a character of several bytes
        copy(1);
        end_atom(continues ? atom_ : begin);
      }
    }
    return std::move(to_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw InvalidArgument("the regular expression '{}' has {} at byte {}, which is not supported", from_, what, at_);
  }
  char next(std::size_t ahead = 0) const { return at_ + ahead < from_.size() ? from_[at_ + ahead] : '\0'; }
  void copy(std::size_t count) {
    to_ += from_.substr(at_, count);
    at_ += count;
  }
  void copy_to(char last) {
    const std::size_t end = from_.find(last, at_);
    copy(end == std::string_view::npos ? from_.size() - at_ : end + 1 - at_);
  }
  void end_atom(std::size_t begin) {
    atom_ = begin;
    is_start_ = false;
  }
  void put_class(std::string_view members, bool negated) {
    if (in_class_ && negated) refuse("a negated class within a class");
    to_ += in_class_ ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
    at_ += 2;
  }
  void put_boundary(bool negated) {
    const std::string word = fmt::format("[{}]", kWords);
    to_ += negated ? fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word)
                   : fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word);
    at_ += 2;
  }
  void escape() {
    const char c = next(1);
    if (c == 's') return put_class(kSpaces, false);
    if (c == 'S' && in_class_) to_ += R"(\x{180e})";  // then \S, which lacks it
    if (c == 'S' && !in_class_) return put_class(kSpaces, true);
    if (c == 'w' || c == 'W') return put_class(kWords, c == 'W');
    if (c == 'h' || c == 'H') return put_class(kHex, c == 'H');
    if ((c == 'b' || c == 'B') && !in_class_) return put_boundary(c == 'B');
    if (c == 'v') {
      to_ += R"(\x0b)";
      at_ += 2;
      return;
    }
    for (const char other : {'Q', 'E', 'V'})  // letters in Oniguruma
      if (c == other) refuse(fmt::format("\\{}", other));
    if (c == 'u' && at_ + 6 <= from_.size()) {
      to_ += fmt::format("\\x{{{}}}", from_.substr(at_ + 2, 4));
      at_ += 6;
      return;
    }
    copy(2);
    if ((c == 'p' || c == 'P' || c == 'x' || c == 'o') && next() == '{') return copy_to('}');
    if ((c == 'k' || c == 'g') && next() == '<') return copy_to('>');
    if (c == 'x')
      for (int digits = 0; digits < 2 && is_hex_digit(next()); ++digits) copy(1);
    if (is_digit(c))
      while (is_digit(next())) copy(1);
    if (c == 'c' && at_ < from_.size()) copy(1);
  }
  // {n,m}, and what follows it. Behind an interval, + repeats it in Oniguruma, and ? makes {n} optional; PCRE2 takes
  // them as possessive and lazy.
  void interval() {
    std::size_t end = at_ + 1;
    const auto digits = [&] {
      const std::size_t begin = end;
      while (end < from_.size() && is_digit(from_[end])) ++end;
      return from_.substr(begin, end - begin);
    };
    const std::string_view least = digits();
    const bool has_comma = end < from_.size() && from_[end] == ',';
    if (has_comma) ++end;
    const std::string_view most = has_comma ? digits() : least;
    if (end == from_.size() || from_[end] != '}' || (least.empty() && most.empty())) {
      const std::size_t begin = to_.size();
      copy(1);  // a brace
      return end_atom(begin);
    }
    ++end;
    const char behind = end < from_.size() ? from_[end] : '\0';
    const bool repeats = behind == '+' || (behind == '?' && !has_comma);
    if (repeats && is_extended_) refuse("a repeated interval and the option x");
    to_ += fmt::format("{{{}", least.empty() ? "0" : least);
    if (has_comma) to_ += fmt::format(",{}", most);
    to_ += '}';
    if (repeats) {
      to_.insert(atom_, "(?:");
      to_ += ')';
    }
    at_ = end;
    if (repeats) copy(1);
  }
  void open_class() {
    end_atom(to_.size());
    in_class_ = true;
    copy(1);
    if (next() == '^') copy(1);
    if (next() == ']') copy(1);
  }
  void inside_class(char c) {
    if (c == ']') in_class_ = false;
    if (c == '&' && from_.substr(at_).starts_with("&&")) refuse("an intersection of classes");
    if (c != '[') return copy(1);
    const std::size_t end = from_.find(":]", at_);
    if (next(1) != ':' || end == std::string_view::npos) refuse("a class within a class");
    const std::string_view name = from_.substr(at_ + 2, end - at_ - 2);
    for (const PosixClass& each : kPosixClasses)
      if (name == each.name) {
        to_ += each.members;
        at_ = end + 2;
        return;
      }
    refuse(fmt::format("[:{}:]", name));
  }
  void open_group() {
    if (next(1) == '*') refuse("a callout");
    if (from_.substr(at_).starts_with("(?#")) return copy_to(')');  // a comment
    const bool is_start = is_start_;
    const std::size_t begin = to_.size();
    open_.push_back(begin);
    is_start_ = true;
    copy(1);
    if (next() != '?') return;
    copy(1);
    if (next() == '<') {
      const bool looks_behind = next(1) == '=' || next(1) == '!';
      return looks_behind ? copy(2) : copy_to('>');
    }
    if (next() == ':' || next() == '=' || next() == '!' || next() == '>') return copy(1);
    options();
    if (next() == ':') return copy(1);
    if (next() != ')') return;
    // In Oniguruma the alternatives behind it belong to its group.
    if (!is_start) refuse("options without a colon behind the start of a group");
    copy(1);
    open_.pop_back();
    atom_ = begin;
  }
  // m lets a dot match line ends, which PCRE2 calls s.
  void options() {
    bool is_on = true;
    for (char c = next(); c == '-' || c == 'i' || c == 'm' || c == 'x'; c = next()) {
      if (c == '-') is_on = false;
      if (c == 'x' && is_on) is_extended_ = true;
      to_ += c == 'm' ? 's' : c;
      ++at_;
    }
  }
  void close_group() {
    copy(1);
    end_atom(open_.empty() ? to_.size() - 1 : open_.back());
    if (!open_.empty()) open_.pop_back();
  }

  std::string_view from_;
  std::string to_;
  std::size_t at_ = 0, atom_ = 0;  // atom_: where the last repeatable item begins in to_
  std::vector<std::size_t> open_;  // where the groups begin in to_ that have not ended
  bool in_class_ = false;
  bool is_start_ = true;      // of a group or of an alternative
  bool is_extended_ = false;  // an option x was seen
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

std::shared_ptr<const void> compiled(const std::string& expression, const std::string& translated) {
  // As in Oniguruma, ^ and $ match at each line.
  constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* const made = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions,
                                         &code, &at, context.get());
  if (made == nullptr)
    throw InvalidArgument("the regular expression '{}' cannot be compiled: {} at byte {} of '{}'", expression,
                          pcre2_message(code), at, translated);
  return {made, [](const void* each) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(each))); }};
}

}  // namespace

std::string pcre2_expression(std::string_view expression) { return Translation(expression).run(); }

struct PatternScratch::Memory {
  Memory()
      : match(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(std::size_t{32} << 10, std::size_t{16} << 20, nullptr)) {
    if (match == nullptr || context == nullptr) throw std::bad_alloc();
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);  // null: this build of PCRE2 has no JIT
  }
  ~Memory() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

PatternScratch::PatternScratch() : memory_(std::make_unique<Memory>()) {}
PatternScratch::~PatternScratch() = default;

TextPattern TextPattern::string(std::string text) {
  TextPattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

TextPattern TextPattern::regex(const std::string& expression) {
  TextPattern pattern;
  pattern.text_ = expression;
  pattern.code_ = compiled(expression, pcre2_expression(expression));
  // Where machine code is not allowed, PCRE2 interprets the expression.
  auto* const code = static_cast<pcre2_code*>(const_cast<void*>(pattern.code_.get()));
  pattern.has_machine_code_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  return pattern;
}

bool TextPattern::find(std::string_view text, std::size_t from, PatternScratch& scratch, Span& match) const {
  if (!code_) {
    const std::size_t at = text_.empty() ? std::string_view::npos : text.find(text_, from);
    match = {at, at + text_.size()};
    return at != std::string_view::npos;
  }
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  PatternScratch::Memory& memory = *scratch.memory_;
  const int result =
      has_machine_code_
          ? pcre2_jit_match(code, subject, text.size(), from, 0, memory.match, memory.context)
          : pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, memory.match, memory.context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0)
    throw Error("the regular expression '{}' failed at byte {} of a text of {} bytes: {}", text_, from, text.size(),
                pcre2_message(result));
  const PCRE2_SIZE* const place = pcre2_get_ovector_pointer(memory.match);
  match = {place[0], place[1]};
  return true;
}

}  // namespace lockstep::data
