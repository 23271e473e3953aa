// For '--epochs abc', cxxopts reports that 'abc' failed to parse, but not to which flag it belongs.
#pragma once

#include <algorithm>
#include <cxxopts.hpp>
#include <exception>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::examples {

// Returns the flag at which parsing these words fails with this text: the last word of the shortest command line that
// fails in this way, or the flag before it.
inline std::string failing_flag(cxxopts::Options& options, int argc, const char* const* argv,
                                const std::string& failure) {
  for (int count = 2; count <= argc; ++count) {
    try {
      options.parse(count, argv);
    } catch (const std::exception& error) {
      if (error.what() != failure) continue;
      const std::string last = argv[count - 1];
      if (last.rfind("--", 0) == 0) return last.substr(0, last.find('='));
      return argv[count - 2];
    }
  }
  return "";
}

// Parses the command line. Throws InvalidArgument, which names the flag, since the names of cxxopts' error classes
// depend on its version.
inline cxxopts::ParseResult parse_naming_flags(cxxopts::Options& options, int argc, const char* const* argv) {
  try {
    return options.parse(argc, argv);
  } catch (const std::exception& error) {
    const std::string failure = error.what(), flag = failing_flag(options, argc, argv, failure);
    const bool is_named =
        flag.empty() ||
        failure.find(flag.substr(std::min(flag.size(), flag.find_first_not_of('-')))) != std::string::npos;
    throw InvalidArgument("{}{}{}, see --help", is_named ? "" : flag, is_named ? "" : ": ", failure);
  }
}

}  // namespace lockstep::examples
