#include "bench/lib/bench_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::bench {

std::size_t parse_bytes(const std::string& flag, const std::string& text) {
  std::size_t used = 0;
  unsigned long long number = 0;
  try {
    number = std::stoull(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  const int shift = unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : 0;
  if (used == 0 || text[0] == '-' || (shift == 0 && !unit.empty()) || (number << shift) >> shift != number)
    throw InvalidArgument("{}: '{}' is not a number of bytes; examples: 4, 64K, 25M, 1G", flag, text);
  return number << shift;
}

std::string bytes_text(std::size_t bytes) {
  const char* const kUnits[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  auto number = static_cast<double>(bytes);
  for (; number >= 1024 && unit < 3; ++unit) number /= 1024;
  return fmt::format("{:.4g} {}", number, kUnits[unit]);
}

DeviceKind choose_device(const std::string& word) {
  if (word != "cpu" && word != "cuda" && !word.starts_with("cuda:"))
    throw InvalidArgument("--device {}: expected cpu, cuda or cuda:N", word);
  const bool is_chosen = word == "cuda" && env::text(env::kDevice).value_or("").starts_with("cuda:");
  if (!is_chosen) ::setenv(env::kDevice, word.c_str(), 1);
  return word == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
}

double quantile(std::vector<double> samples, double share) {
  LOCKSTEP_CHECK(!samples.empty(), "no samples");
  const auto index =
      std::min(samples.size() - 1, static_cast<std::size_t>(static_cast<double>(samples.size()) * share));
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(index), samples.end());
  return samples[index];
}

double rounded(double value, int digits) {
  const double scale = std::pow(10, digits);
  return std::round(value * scale) / scale;
}

void Report::row(const nlohmann::ordered_json& fields) {
  if (json_) {
    fmt::print("{}\n", fields.dump());
    std::fflush(stdout);
    return;
  }
  const auto cell = [](const nlohmann::ordered_json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  if (widths_.empty()) {
    for (const auto& [name, value] : fields.items()) {
      widths_.push_back(std::max<std::size_t>(name.size(), 10));
      fmt::print("{}{:>{}}", widths_.size() == 1 ? "" : "  ", name, widths_.back());
    }
    fmt::print("\n");
  }
  std::size_t column = 0;
  for (const auto& [name, value] : fields.items()) {
    fmt::print("{}{:>{}}", column == 0 ? "" : "  ", cell(value), column < widths_.size() ? widths_[column] : 10);
    ++column;
  }
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace lockstep::bench
