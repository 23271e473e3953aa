#include "tests/support/pattern.h"

#include <regex>

namespace lockstep::testing {
namespace {

std::vector<std::string> texts_of(const std::smatch& match) {
  std::vector<std::string> texts;
  for (const auto& part : match) texts.push_back(part.str());
  return texts;
}

std::vector<std::vector<std::string>> find_all(const std::string& text, const std::regex& expression) {
  std::vector<std::vector<std::string>> found;
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it)
    found.push_back(texts_of(*it));
  return found;
}

}  // namespace

std::vector<std::string> find_match(const std::string& text, const std::string& pattern) {
  std::smatch match;
  if (!std::regex_search(text, match, std::regex(pattern))) return {};
  return texts_of(match);
}

std::vector<std::vector<std::string>> find_matches(const std::string& text, const std::string& pattern) {
  return find_all(text, std::regex(pattern));
}

std::vector<std::vector<std::string>> find_matches_by_line(const std::string& text, const std::string& pattern) {
  return find_all(text, std::regex(pattern, std::regex::ECMAScript | std::regex::multiline));
}

bool matches(const std::string& text, const std::string& pattern) {
  return std::regex_match(text, std::regex(pattern));
}

std::string replace_matches(const std::string& text, const std::string& pattern, const std::string& replacement) {
  return std::regex_replace(text, std::regex(pattern), replacement);
}

}  // namespace lockstep::testing
