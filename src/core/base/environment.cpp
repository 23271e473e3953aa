#include "lockstep/core/environment.h"

#include <charconv>
#include <cstdlib>

#include "lockstep/core/error.h"

namespace lockstep::env {

std::optional<std::string> text(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

long parse_integer(const char* name, const std::string& value, long low, long high) {
  long number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, failure] = std::from_chars(value.data(), end, number);
  if (failure != std::errc() || stop != end)
    throw InvalidArgument("environment: {}='{}' is not a whole number", name, value);
  if (number < low || number > high)
    throw InvalidArgument("environment: {}={} is outside {}..{}", name, number, low, high);
  return number;
}

std::optional<long> integer(const char* name, long low, long high) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  return parse_integer(name, *value, low, high);
}

}  // namespace lockstep::env
