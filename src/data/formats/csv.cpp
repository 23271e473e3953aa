#include "src/data/formats/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

std::string_view without_spaces(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// Whether a number whose value is out of range is too small, not too large: the exponent together with the place of the
// first digit other than 0 gives its magnitude.
bool is_below_range(std::string_view number) {
  const std::size_t end = std::min(number.find_first_of("eE"), number.size()), point = std::min(number.find('.'), end),
                    first = number.find_first_of("123456789");
  std::int64_t exponent = 0;
  if (end < number.size()) {
    const std::size_t digits = end + (number.substr(end + 1).starts_with('+') ? 2 : 1);
    if (std::from_chars(number.data() + digits, number.data() + number.size(), exponent).ec != std::errc())
      return number[digits] == '-';
  }
  return exponent + static_cast<std::int64_t>(point) < static_cast<std::int64_t>(first);
}

template <typename T> T value_of(std::string_view field, const std::string& column) {
  std::string_view text = without_spaces(field);
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if constexpr (std::is_same_v<T, float>)
    if (failure == std::errc::result_out_of_range && end == text.data() + text.size() && is_below_range(text)) {
      double wide = text.starts_with('-') ? -0.0 : 0.0;  // stays where the number is below double's range, too
      std::from_chars(text.data(), end, wide);
      return static_cast<float>(wide);
    }
  if (failure == std::errc::result_out_of_range)
    throw InvalidArgument("column {}: '{}' does not fit into {}", column, field, name_of(kDTypeOf<T>));
  if (failure != std::errc() || end != text.data() + text.size() || text.empty())
    throw InvalidArgument("column {}: expected {}, got '{}'", column,
                          std::is_same_v<T, float> ? "a number" : "an integer", field);
  return value;
}

}  // namespace

CsvReader::CsvReader(std::string_view text, const std::string& path, const CsvOptions& options)
    : text_(text), path_(path), separator_(options.separator) {
  if (separator_ == '"' || separator_ == '\n' || separator_ == '\r')
    throw InvalidArgument("{}: a CSV separator cannot be a quote or the end of a line", path);
  if (!options.header || !next()) return;
  columns_ = fields_;
  std::vector<std::string> sorted = columns_;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twin = std::adjacent_find(sorted.begin(), sorted.end()); twin != sorted.end())
    throw FileError("{}: line 1: two columns have the name '{}': read the file with header = false, and skip the line",
                    path, *twin);
}

bool CsvReader::next() {
  const std::size_t filled = text_.find_first_not_of("\r\n", at_);
  if (filled == std::string_view::npos) return false;
  if (count_ != 1)  // of one column, an empty line is an empty field
    for (; at_ < filled; ++at_) line_ += text_[at_] == '\n';
  line_of_record_ = line_;
  read_fields();
  if (count_ == 0) count_ = fields_.size();
  if (fields_.size() != count_)
    throw FileError("{}: line {}: has {} fields, expected {} as in the first line: is the separator '{}'?", path_,
                    line_of_record_, fields_.size(), count_, separator_);
  return true;
}

void CsvReader::read_fields() {
  fields_.clear();
  for (;;) {
    if (at_ < text_.size() && text_[at_] == '"') {
      fields_.push_back(read_quoted());
    } else {
      const std::size_t end = std::min(text_.find_first_of(std::string{separator_, '\n'}, at_), text_.size());
      std::string_view field = text_.substr(at_, end - at_);
      if ((end == text_.size() || text_[end] == '\n') && field.ends_with('\r')) field.remove_suffix(1);
      fields_.emplace_back(field);
      at_ = end;
    }
    if (at_ == text_.size()) return;
    const char after = text_[at_++];
    if (after == separator_) continue;
    if (after == '\r' && at_ < text_.size() && text_[at_] == '\n') ++at_;
    ++line_;
    return;
  }
}

// The text between quotes, in which two quotes are one; `at_` is then after the closing quote.
std::string CsvReader::read_quoted() {
  std::string field;
  for (++at_;;) {
    const std::size_t quote = text_.find('"', at_);
    if (quote == std::string_view::npos)
      throw FileError("{}: line {}: field {} begins with a quote that is not closed", path_, line_of_record_,
                      fields_.size() + 1);
    field += text_.substr(at_, quote - at_);
    at_ = quote + 1;
    if (at_ == text_.size() || text_[at_] != '"') break;
    field += '"';
    ++at_;
  }
  line_ += static_cast<std::size_t>(std::count(field.begin(), field.end(), '\n'));
  if (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n' && text_.substr(at_, 2) != "\r\n")
    throw FileError("{}: line {}: field {} goes on after its closing quote: quotes inside a field are doubled", path_,
                    line_of_record_, fields_.size() + 1);
  return field;
}

std::size_t CsvRecord::place_of(std::string_view column) const {
  const auto found = std::find(names_.begin(), names_.end(), column);
  if (found == names_.end()) {
    std::string all;
    for (const std::string& name : names_) all += (all.empty() ? "'" : ", '") + name + "'";
    throw InvalidArgument("no column has the name '{}'; the header has {}", column, all.empty() ? "no names" : all);
  }
  return static_cast<std::size_t>(found - names_.begin());
}

std::string CsvRecord::name_of(std::size_t column) const {
  return names_.empty() ? std::to_string(column) : fmt::format("'{}'", names_[column]);
}

std::string_view CsvRecord::text(std::size_t column) const {
  if (column >= fields_.size())
    throw InvalidArgument("column {} does not exist: the record has {} fields", column, fields_.size());
  return fields_[column];
}

float CsvRecord::number(std::size_t column) const {
  const std::string_view field = text(column);
  return value_of<float>(field, name_of(column));
}

std::int64_t CsvRecord::integer(std::size_t column) const {
  const std::string_view field = text(column);
  return value_of<std::int64_t>(field, name_of(column));
}

}  // namespace lockstep::data
