// A part of a tokenizer.json, with its place for messages. All members throw FileError with file and place.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/data/unicode/text_pattern.h"

namespace lockstep::data {

class FileComponent {
 public:
  // Refers to `value` and `file`.
  FileComponent(const nlohmann::json& value, const std::string& file, std::string place)
      : value_(value), file_(file), place_(std::move(place)) {}

  bool is_null() const { return value_.is_null(); }
  bool has(const char* key) const;  // and it is not null
  const nlohmann::json& value() const { return value_; }
  FileComponent part(const char* key) const;  // null if the key is missing
  std::vector<FileComponent> list(const char* key) const;

  std::string kind() const { return text("type"); }
  std::string text(const char* key) const;
  std::string text(const char* key, const std::string& otherwise) const { return has(key) ? text(key) : otherwise; }
  std::int64_t integer(const char* key) const;
  std::int64_t integer(const char* key, std::int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  bool flag(const char* key, bool otherwise) const;
  TextPattern pattern(const char* key) const;  // {"String": ...} or {"Regex": ...}
  template <typename Choice>
  Choice choice(const char* key, const std::vector<std::pair<std::string_view, Choice>>& choices) const {
    const std::string found = text(key);
    std::string names;
    for (const auto& [name, value] : choices) {
      if (name == found) return value;
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    refuse(fmt::format("'{}' is '{}', expected one of {}", key, found, names));
  }

  [[noreturn]] void refuse(const std::string& why) const;
  [[noreturn]] void refuse_kind(std::string_view supported) const;

 private:
  const nlohmann::json& required(const char* key, bool (nlohmann::json::*is_kind)() const noexcept,
                                 const char* kind) const;

  const nlohmann::json& value_;
  const std::string& file_;
  std::string place_;
};

}  // namespace lockstep::data
