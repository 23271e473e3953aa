// CONTRIBUTING's glossary against the sources: a word that its last column rules out stands in no identifier, comment
// or message.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "tests/architecture/sources.h"
#include "tests/support/page.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

// Uses of a ruled-out word that are right.
struct Allowed {
  std::string_view word, where, reason;
};
constexpr std::array<Allowed, 0> kAllowed = {};

struct Word {
  std::string text;  // in lower case
  int line;
};

// "BackendName", "backend_name" and "backend\n// name" are two words each.
std::vector<Word> words_of(const std::string& code) {
  std::vector<Word> words;
  int line = 1;
  char before = ' ';
  for (const char c : code) {
    const bool is_letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    const bool was_letter = std::isalpha(static_cast<unsigned char>(before)) != 0;
    const bool is_hump =
        std::isupper(static_cast<unsigned char>(c)) != 0 && std::islower(static_cast<unsigned char>(before)) != 0;
    if (is_letter && (!was_letter || is_hump)) words.push_back({"", line});
    if (is_letter) words.back().text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (c == '\n') ++line;
    before = c;
  }
  return words;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_phrase_at(const std::vector<Word>& words, std::size_t at, const std::vector<Word>& phrase) {
  if (at + phrase.size() > words.size()) return false;
  for (std::size_t i = 0; i < phrase.size(); ++i) {
    const std::string& found = words[at + i].text;
    if (found != phrase[i].text && found != phrase[i].text + "s") return false;
  }
  return true;
}

class Source {
 public:
  explicit Source(std::string code) : code_(std::move(code)), lower_(lower(code_)) {}

  // The lines with the word. One that has a capital letter is looked for as it is spelled, anywhere in an identifier.
  std::vector<int> lines_with(const std::string& ruled_out) {
    std::vector<int> lines;
    if (lower(ruled_out) != ruled_out) {
      for (std::size_t at = code_.find(ruled_out); at != std::string::npos; at = code_.find(ruled_out, at + 1))
        lines.push_back(
            1 + static_cast<int>(std::count(code_.begin(), code_.begin() + static_cast<std::ptrdiff_t>(at), '\n')));
      return lines;
    }
    const std::vector<Word> phrase = words_of(ruled_out);
    if (lower_.find(phrase[0].text) == std::string::npos)
      return lines;  // nearly always: taking the file apart takes its time
    if (words_.empty()) words_ = words_of(code_);
    for (std::size_t at = 0; at < words_.size(); ++at)
      if (is_phrase_at(words_, at, phrase)) lines.push_back(words_[at].line);
    return lines;
  }

 private:
  const std::string code_, lower_;
  std::vector<Word> words_;
};

std::vector<int> lines_with(const std::string& ruled_out, const std::string& code) {
  return Source(code).lines_with(ruled_out);
}

struct Row {
  std::string word;
  std::vector<std::string> ruled_out;
};

// "| word | means | `not`, `nor` |"
std::vector<Row> glossary() {
  const std::string page = text_of_file(LOCKSTEP_SOURCE_ROOT "/CONTRIBUTING.md");
  const std::size_t begin = page.find("\n## Words\n"), end = std::min(page.find("\n## ", begin + 1), page.size());
  std::vector<Row> rows;
  if (begin == std::string::npos) return rows;
  for (const auto& cells :
       find_matches(page.substr(begin, end - begin), R"(\n\| ([^|\n]+) \| ([^|\n]+) \|([^|\n]*)\|)")) {
    if (cells[1] == "word") continue;
    Row row{cells[1], {}};
    for (const auto& quoted : find_matches(cells[3], "`([^`]+)`")) row.ruled_out.push_back(quoted[1]);
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST(Words, AreTheGlossarys) {
  const std::vector<Row> rows = glossary();
  EXPECT_GT(rows.size(), 20u);
  EXPECT_LE(rows.size(), 30u) << "words that a reader knows from PyTorch or MPI need no row";
  const int files = visit_sources(
      {"include", "src", "kernels", "launcher", "examples"}, [&](const std::string& path, const std::string& code) {
        Source source(code);
        for (const Row& row : rows)
          for (const std::string& ruled_out : row.ruled_out) {
            const bool is_allowed = std::any_of(std::begin(kAllowed), std::end(kAllowed), [&](const Allowed& each) {
              return each.word == ruled_out && path.rfind(each.where, 0) == 0;
            });
            if (is_allowed) continue;
            for (const int line : source.lines_with(ruled_out))
              ADD_FAILURE() << path << ":" << line << ": '" << ruled_out << "': our word is '" << row.word
                            << "' (CONTRIBUTING.md, Words)";
          }
      });
  EXPECT_GT(files, 100);
}

TEST(Words, StandOnceInTheGlossary) {
  std::vector<std::string> words;
  for (const Row& row : glossary()) words.push_back(row.word);
  std::sort(words.begin(), words.end());
  EXPECT_EQ(std::adjacent_find(words.begin(), words.end()), words.end()) << "one meaning a word";
}

TEST(Words, ARuledOutOneIsFoundInEverySpelling) {
  for (const char* code : {"class SignOfLife;", "int sign_of_life_;", "constexpr int kSignOfLife = 1;",
                           "x();  // a sign\n// of life\n", "\"Signs of life\""})
    EXPECT_EQ(lines_with("sign of life", code).size(), 1u) << code;
  EXPECT_EQ(lines_with("stranger", "a;\n// Strangers\n"), std::vector<int>{2});
  EXPECT_TRUE(lines_with("bell", "label, Bellman, doorbell").empty());
  EXPECT_EQ(lines_with("Relu", "kRelu, ReLU, relu"), std::vector<int>{1});
}

}  // namespace
}  // namespace lockstep::testing
