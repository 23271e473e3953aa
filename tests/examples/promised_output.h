// Reads the output promised in an example's opening comment: its lines "//   [0] ...".
#pragma once

#include <fstream>
#include <string>

namespace lockstep::testing {

inline std::string promised_output(const char* source_file) {
  std::ifstream source(source_file);
  std::string text;
  for (std::string line; std::getline(source, line) && line.rfind("//", 0) == 0;)
    if (line.rfind("//   [0]", 0) == 0) text += line.substr(5) + "\n";
  return text;
}

}  // namespace lockstep::testing
