#include "lockstep/train/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/core/error.h"

namespace lockstep::train {

namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

std::string number(const std::string& name, double value) {
  return name == "lr" ? fmt::format("{:.4g}", value) : fmt::format("{:.4f}", value);
}

}  // namespace

double value_of(const Logs& logs, const std::string& name, const char* asks) {
  std::vector<std::string> names;
  for (const auto& [known, value] : logs) {
    if (known == name) return value;
    names.push_back(known);
  }
  throw InvalidArgument("{}: there is no value '{}', only {}; names with val_ need FitOptions::validation", asks, name,
                        list_of(names));
}

std::string text_of(const Logs& logs) {
  std::string text;
  for (const auto& [name, value] : logs)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, number(name, value));
  return text;
}

std::string keras_text_of(const Logs& logs) {
  std::string text;
  for (const auto& [name, value] : logs)
    text += fmt::format(
        "{}{}: {}", text.empty() ? "" : " - ", name,
        std::abs(value) > 1e-3 || std::isnan(value) ? fmt::format("{:.4f}", value) : fmt::format("{:.4e}", value));
  return text;
}

void History::add(std::int64_t epoch, const Logs& logs) {
  for (auto& column : columns_) column.second.push_back(kNoValue);
  for (const auto& entry : logs) {
    auto column =
        std::find_if(columns_.begin(), columns_.end(), [&](const auto& each) { return each.first == entry.first; });
    if (column == columns_.end())
      column = columns_.insert(columns_.end(), {entry.first, std::vector<double>(numbers_.size() + 1, kNoValue)});
    column->second.back() = entry.second;
  }
  numbers_.push_back(epoch);
}

std::vector<std::string> History::names() const {
  std::vector<std::string> names;
  for (const auto& column : columns_) names.push_back(column.first);
  return names;
}

const std::vector<double>& History::values(const std::string& name) const {
  for (const auto& column : columns_)
    if (column.first == name) return column.second;
  throw InvalidArgument("History: there is no value '{}', only {}", name, list_of(names()));
}

std::string History::text() const {
  std::string text = "epoch";
  for (const auto& column : columns_)
    text += fmt::format("  {:>{}}", column.first, std::max<std::size_t>(column.first.size(), 8));
  text += "\n";
  for (std::size_t line = 0; line < numbers_.size(); ++line) {
    text += fmt::format("{:>5}", numbers_[line]);
    for (const auto& column : columns_)
      text += fmt::format("  {:>{}}", number(column.first, column.second[line]),
                          std::max<std::size_t>(column.first.size(), 8));
    text += "\n";
  }
  return text;
}

}  // namespace lockstep::train
