#include "src/data/tokenizers/file_component.h"

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

const nlohmann::json kNoValue;

}  // namespace

void FileComponent::refuse(const std::string& why) const {
  throw FileError("{}: {}{}{}", file_, place_, place_.empty() ? "" : ": ", why);
}

void FileComponent::refuse_kind(std::string_view supported) const {
  refuse(fmt::format("kind '{}' is not supported; supported are {}", kind(), supported));
}

bool FileComponent::has(const char* key) const {
  return value_.is_object() && value_.contains(key) && !value_.at(key).is_null();
}

FileComponent FileComponent::part(const char* key) const {
  const std::string place = place_.empty() ? key : place_ + "." + key;
  return {value_.is_object() && value_.contains(key) ? value_.at(key) : kNoValue, file_, place};
}

const nlohmann::json& FileComponent::required(const char* key, bool (nlohmann::json::*is_kind)() const noexcept,
                                              const char* kind) const {
  if (!value_.is_object())
    refuse(fmt::format("expected a JSON object with '{}', found a JSON {}", key, value_.type_name()));
  if (!value_.contains(key)) refuse(fmt::format("'{}' is missing; expected {}", key, kind));
  const nlohmann::json& found = value_.at(key);
  if (!(found.*is_kind)()) refuse(fmt::format("'{}' is a JSON {}; expected {}", key, found.type_name(), kind));
  return found;
}

std::vector<FileComponent> FileComponent::list(const char* key) const {
  std::vector<FileComponent> parts;
  constexpr std::size_t kLongestPlace = 4096;  // a damaged file nests without end
  if (place_.size() > kLongestPlace)
    throw FileError("{}: components are nested too deeply: {}...", file_, place_.substr(0, 80));
  for (const nlohmann::json& each : required(key, &nlohmann::json::is_array, "a list"))
    parts.emplace_back(each, file_, fmt::format("{}{}{}[{}]", place_, place_.empty() ? "" : ".", key, parts.size()));
  return parts;
}

std::string FileComponent::text(const char* key) const {
  return required(key, &nlohmann::json::is_string, "a string").get<std::string>();
}

std::int64_t FileComponent::integer(const char* key) const {
  return required(key, &nlohmann::json::is_number_integer, "an integer").get<std::int64_t>();
}

bool FileComponent::flag(const char* key, bool otherwise) const {
  return has(key) ? required(key, &nlohmann::json::is_boolean, "true or false").get<bool>() : otherwise;
}

TextPattern FileComponent::pattern(const char* key) const {
  const FileComponent given = part(key);
  if (given.has("String")) return TextPattern::string(given.text("String"));
  if (!given.has("Regex")) given.refuse("expected {\"String\": ...} or {\"Regex\": ...}");
  try {
    return TextPattern::regex(given.text("Regex"));
  } catch (const InvalidArgument& error) {
    given.refuse(error.what());
  }
}

}  // namespace lockstep::data
