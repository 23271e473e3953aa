#include "src/data/unicode/text_pattern.h"

#include <new>

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

class Translation {
 public:
  explicit Translation(std::string_view expression) : from_(expression) {}

  std::string run() {
    while (at_ < from_.size()) {
      const char c = from_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        inside_class(c);
      } else if (c == '[') {
        open_class();
      } else if (from_.substr(at_).starts_with("(?")) {
        group();
      } else {
        copy(1);
      }
    }
    return std::move(to_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw InvalidArgument("the regular expression '{}' has {} at byte {}, which is not supported", from_, what, at_);
  }
  void copy(std::size_t count) {
    to_ += from_.substr(at_, count);
    at_ += count;
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
    const char c = at_ + 1 < from_.size() ? from_[at_ + 1] : '\0';
    if (c == 's') return put_class(kSpaces, false);
    if (c == 'S' && in_class_) to_ += R"(\x{180e})";  // then \S, which lacks it
    if (c == 'S' && !in_class_) return put_class(kSpaces, true);
    if (c == 'w' || c == 'W') return put_class(kWords, c == 'W');
    if (c == 'h' || c == 'H') return put_class(kHex, c == 'H');
    if ((c == 'b' || c == 'B') && !in_class_) return put_boundary(c == 'B');
    if (c == 'u' && at_ + 6 <= from_.size()) {
      to_ += fmt::format("\\x{{{}}}", from_.substr(at_ + 2, 4));
      at_ += 6;
      return;
    }
    copy(2);
  }
  void open_class() {
    in_class_ = true;
    copy(1);
    if (at_ < from_.size() && from_[at_] == '^') copy(1);
    if (at_ < from_.size() && from_[at_] == ']') copy(1);
  }
  void inside_class(char c) {
    if (c == ']') in_class_ = false;
    if (c == '&' && from_.substr(at_).starts_with("&&")) refuse("an intersection of classes");
    if (c != '[') return copy(1);
    const std::size_t end = from_.find(":]", at_);
    if (!from_.substr(at_).starts_with("[:") || end == std::string_view::npos) refuse("a class within a class");
    copy(end + 2 - at_);
  }
  // Flags: m lets a dot match line ends, which PCRE2 calls s.
  void group() {
    copy(2);
    while (at_ < from_.size() && (from_[at_] == '-' || from_[at_] == 'i' || from_[at_] == 'm' || from_[at_] == 'x')) {
      to_ += from_[at_] == 'm' ? 's' : from_[at_];
      ++at_;
    }
  }

  std::string_view from_;
  std::string to_;
  std::size_t at_ = 0;
  bool in_class_ = false;
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
