// Common parts of the programs in bench/: medians, sizes in flags, and results as a table for people or JSON lines.
#pragma once

#include <cstddef>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep::bench {

// "64", "4K", "25M", "1G"; K, M and G are binary. Throws InvalidArgument that names the flag.
std::size_t parse_bytes(const std::string& flag, const std::string& text);
std::string bytes_text(std::size_t bytes);  // "25 MiB", "48 B"

// Selects the device of this process and of the ranks that it starts: cpu, cuda (the GPU of the local rank, or an error
// if there is none; a launcher's choice of one is kept) or cuda:N. Throws InvalidArgument for any other word.
DeviceKind choose_device(const std::string& word);

// The value below which `share` of the samples lie (0.5: the median). `samples` must not be empty, in any order.
double quantile(std::vector<double> samples, double share);

// Rounds to `digits` decimals, so that JSON stays readable.
double rounded(double value, int digits);

// Rows with the same keys, printed immediately: aligned under a header, or one JSON object per line.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  void row(const nlohmann::ordered_json& fields);

 private:
  bool json_;
  std::vector<std::size_t> widths_;  // of the table's columns, set by the first row
};

// Calls `round(warm_up)` once. When serving, it first runs that many steps and prints a line, and then calls `round(0)`
// for each line on stdin.
template <typename Step, typename Round> void make_rounds(bool serve, int warm_up, Step&& step, Round&& round) {
  if (!serve) return round(warm_up);
  for (int i = 0; i < warm_up; ++i) step();
  std::puts("{\"ready\": true}");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line); std::fflush(stdout)) round(0);
}

}  // namespace lockstep::bench
