#include "src/launch/output/line_folder.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr char kOwnNumber = '\x01';

bool is_digit(char byte) { return std::isdigit(static_cast<unsigned char>(byte)) != 0; }
bool is_letter(char byte) { return std::isalpha(static_cast<unsigned char>(byte)) != 0; }

// Replaces the rank's own number in 'rank R', 'Rank R' and 'rank=R' by a marker.
std::string with_sign_for(int rank, const std::string& text) {
  if (text.find(kOwnNumber) != std::string::npos) return text;
  const std::string number = std::to_string(rank);
  std::string key;
  std::size_t from = 0;
  for (std::size_t at = 0; (at = text.find("ank", at)) != std::string::npos;) {
    const std::size_t word = at - (at > 0 ? 1 : 0), digits = at + 4;
    at += 3;
    const bool is_word = (text[word] == 'r' || text[word] == 'R') && (word == 0 || !is_letter(text[word - 1]));
    if (!is_word || digits >= text.size() || (text[digits - 1] != ' ' && text[digits - 1] != '=')) continue;
    const std::size_t end = digits + number.size();
    if (text.compare(digits, number.size(), number) != 0 || (end < text.size() && is_digit(text[end]))) continue;
    key += text.substr(from, digits - from) + kOwnNumber;
    from = end;
  }
  return key + text.substr(from);
}

std::string with_numbers(const std::string& key, const std::vector<int>& ranks) {
  std::string text;
  for (const char byte : key) text += byte == kOwnNumber ? "[" + ranges_of(ranks) + "]" : std::string(1, byte);
  return text;
}

}  // namespace

std::string ranges_of(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[begin]);
    if (end > begin) text += "-" + std::to_string(numbers[end]);
    begin = end + 1;
  }
  return text;
}

bool LineFolder::joins(const Waiting& waiting, bool is_error, const std::string& text, const std::string& key) {
  if (waiting.line.is_error != is_error) return false;
  if (waiting.line.text == text) return !waiting.has_numbers;
  const bool may_have_numbers = waiting.has_numbers || waiting.line.ranks.size() == 1;
  return may_have_numbers && key.size() == waiting.key.size() && key == waiting.key;
}

// Index in lines_: the rank's next line may not join one above it.
std::size_t LineFolder::first_below(int rank) const {
  const auto number = static_cast<std::size_t>(rank);
  return number < below_.size() && below_[number] > taken_ ? below_[number] - taken_ : 0;
}

std::vector<LineFolder::Line> LineFolder::add(int rank, bool is_error, std::string text, Clock::time_point now) {
  const auto number = static_cast<std::size_t>(rank);
  if (number >= below_.size()) below_.resize(number + 1);
  std::string key = with_sign_for(rank, text);
  std::size_t place = first_below(rank);
  while (place < lines_.size() && (++comparisons_, !joins(lines_[place], is_error, text, key))) ++place;
  below_[number] = taken_ + place + 1;
  if (place == lines_.size()) {
    bytes_ += text.size();
    lines_.push_back({{{rank}, is_error, std::move(text)}, std::move(key), false, now});
    return is_too_much(lines_.size(), bytes_) ? take(now) : std::vector<Line>();
  }
  Waiting& same = lines_[place];
  if (same.line.text != text) same.has_numbers = true;
  auto& ranks = same.line.ranks;
  ranks.insert(std::lower_bound(ranks.begin(), ranks.end(), rank), rank);
  return {};
}

std::vector<LineFolder::Line> LineFolder::take_first(std::size_t count) {
  std::vector<Line> taken;
  for (; count > 0; --count) {
    Waiting& first = lines_.front();
    bytes_ -= first.line.text.size();
    if (first.has_numbers) first.line.text = with_numbers(first.key, first.line.ranks);
    taken.push_back(std::move(first.line));
    lines_.pop_front();
    ++taken_;
  }
  return taken;
}

std::vector<LineFolder::Line> LineFolder::take(Clock::time_point now) {
  std::size_t count = 0, bytes = bytes_;
  for (const Waiting& waiting : lines_) {
    if (!is_too_much(lines_.size() - count, bytes) && waiting.line.ranks.size() < ranks_ &&
        now - waiting.since < moment_)
      break;
    bytes -= waiting.line.text.size();
    ++count;
  }
  return take_first(count);
}

std::vector<LineFolder::Line> LineFolder::take_until(int rank) { return take_first(first_below(rank)); }

std::optional<Clock::time_point> LineFolder::due() const {
  if (lines_.empty()) return std::nullopt;
  return lines_.front().since + moment_;
}

}  // namespace lockstep::launch
