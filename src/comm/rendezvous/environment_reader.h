// Reads a job's environment through a look-up; errors name the variable.
#pragma once

#include <optional>
#include <string>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/limits.h"

namespace lockstep {

class EnvironmentReader {
 public:
  explicit EnvironmentReader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const {
    auto value = lookup_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  std::optional<long> integer(const char* name, long low, long high) const {
    const auto value = text(name);
    return value ? std::optional(env::parse_integer(name, *value, low, high)) : std::nullopt;
  }
  long required(const char* name, const char* beside, long low, long high) const {
    const auto value = integer(name, low, high);
    if (!value)
      throw InvalidArgument("environment: {} is set but {} is not: set both, or neither to run alone", beside, name);
    return *value;
  }

 private:
  const EnvironmentLookup& lookup_;
};

}  // namespace lockstep
