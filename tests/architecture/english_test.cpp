// Plain English: no comment begins with a word that makes a riddle of its sentence, and phrases that are wrong in
// English stand in no comment, message or page.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/architecture/source_text.h"
#include "tests/architecture/sources.h"
#include "tests/support/page.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
const std::string kSourceRoot = LOCKSTEP_SOURCE_ROOT;

// A sentence that begins with one of these has no subject where the reader looks for it.
constexpr std::array kBadBeginnings = {"Of", "Who", "Whom", "What", "Whose"};

struct Phrase {
  std::string_view text, better;
};
constexpr Phrase kPhrases[] = {
    {"is none", "is invalid, is not a number, is not one of"},  // except "there is none"
    {"is no number", "is not a number, is NaN"},
    {"no finite number", "NaN or infinite"},
    {" one's own", "your own"},
    {"as many are needed", "the counts must match"},
    {"are called as", "have the same names as"},
    {"but for those", "except those"},
    {"for who ", "for those who"},
};

using Pieces = std::vector<SourceText::Piece>;

// Lines of text whose first word begins a sentence: the first line of a comment, and one after a full stop.
std::vector<std::string> bad_beginnings(const Pieces& comments) {
  std::vector<std::string> found;
  int line_before = -2;
  bool ends_sentence = true;
  for (const auto& [line, comment] : comments) {
    const std::size_t begin = std::min(comment.find_first_not_of("/# "), comment.size());
    const std::string text = comment.substr(begin), word = text.substr(0, text.find(' '));
    const bool begins_sentence = line != line_before + 1 || ends_sentence;
    if (begins_sentence && std::find(kBadBeginnings.begin(), kBadBeginnings.end(), word) != kBadBeginnings.end())
      found.push_back(std::to_string(line) + ": a comment begins with '" + word + "': " + text);
    line_before = line;
    ends_sentence = text.empty() || text.back() == '.' || text.back() == '?' || text.back() == '!';
  }
  return found;
}

bool has_phrase(const std::string& text, std::string_view phrase) {
  constexpr std::string_view kThere = "there ";
  for (std::size_t at = text.find(phrase); at != std::string::npos; at = text.find(phrase, at + 1))
    if (at < kThere.size() || text.compare(at - kThere.size(), kThere.size(), kThere) != 0) return true;
  return false;
}

std::vector<std::string> phrases_in(const Pieces& pieces) {
  std::vector<std::string> found;
  for (const auto& [line, piece] : pieces) {
    std::string text = piece + " ";
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const auto& [phrase, better] : kPhrases)
      if (has_phrase(text, phrase))
        found.push_back(std::to_string(line) + ": '" + std::string(phrase) + "', better: " + std::string(better) +
                        ": " + piece);
  }
  return found;
}

void expect_plain(const std::string& path, const Pieces& comments, const Pieces& others) {
  for (const std::string& fault : bad_beginnings(comments)) ADD_FAILURE() << path << ":" << fault;
  for (const Pieces& pieces : {comments, others})
    for (const std::string& fault : phrases_in(pieces)) ADD_FAILURE() << path << ":" << fault;
}

Pieces lines_of(const std::string& text) {
  Pieces lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back({static_cast<int>(lines.size()) + 1, line});
  return lines;
}

// Lines of a shell or Python script that are comments.
Pieces script_comments(const std::string& text) {
  Pieces comments;
  for (const auto& [line, content] : lines_of(text))
    if (const std::size_t at = content.find_first_not_of(' '); at != std::string::npos && content.substr(at, 2) == "# ")
      comments.push_back({line, content.substr(at)});
  return comments;
}

TEST(English, OfTheSourcesIsPlain) {
  const int files = visit_sources({"include", "src", "kernels", "launcher", "examples", "bench", "tests"},
                                  [](const std::string& path, const std::string& code) {
                                    if (path == "tests/architecture/english_test.cpp") return;  // it has the list
                                    const SourceText text(code);
                                    expect_plain(path, text.comments(), text.literals());
                                  });
  EXPECT_GT(files, 400);
}

TEST(English, OfTheScriptsIsPlain) {
  int files = 0;
  for (const char* folder : {"scripts", "bench", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator(kSourceRoot + "/" + folder)) {
      const std::string extension = entry.path().extension().string();
      const bool is_script = entry.is_regular_file() && (extension == ".py" || extension == ".build" ||
                                                         (extension.empty() && std::string(folder) != "tests"));
      if (!is_script) continue;
      expect_plain(entry.path().lexically_relative(kSourceRoot).generic_string(),
                   script_comments(text_of_file(entry.path().string())), {});
      ++files;
    }
  EXPECT_GT(files, 20);
}

TEST(English, OfThePagesIsPlain) {
  std::vector<std::string> pages = pages_below(kSourceRoot);
  for (const char* more : {"CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md"}) pages.push_back(more);
  for (const std::string& page : pages) expect_plain(page, {}, lines_of(text_of_file(kSourceRoot + "/" + page)));
}

TEST(English, ARiddleIsNoticed) {
  const auto faults = [](const std::string& code) {
    const SourceText text(code);
    return bad_beginnings(text.comments()).size() + phrases_in(text.comments()).size() +
           phrases_in(text.literals()).size();
  };
  EXPECT_EQ(faults("// Who waits.\nx();  // Of rank 0.\n"), 2u);
  EXPECT_EQ(faults("// It ends.\n// What follows is odd.\n"), 1u);
  EXPECT_EQ(faults("// The name of the rank that\n// Of 4 ranks is the first.\n"), 0u) << "in the middle of a sentence";
  EXPECT_EQ(faults("fail(\"a rate that is none\");  // for a value that is none\n"), 2u);
  EXPECT_EQ(faults("// null: there is none\n"), 0u);
  EXPECT_EQ(faults("call(\"Of\");  // the kind of call\n"), 0u);
}

}  // namespace
}  // namespace lockstep::testing
