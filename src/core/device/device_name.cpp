#include "src/core/device/device_name.h"

#include <cctype>
#include <regex>

namespace lockstep {

namespace {

// At most four digits: more GPUs than that do not exist, and the number fits an int.
std::optional<int> number_in(const std::ssub_match& digits) {
  return digits.matched ? std::optional<int>(std::stoi(digits.str())) : std::nullopt;
}

}  // namespace

std::optional<DeviceName> parse_device_name(const std::string& text) {
  static const std::regex kForm(
      "(?:/job:localhost)?(?:/replica:0)?(?:/task:0)?"
      "(?:/device:|/)?(cpu|cuda|gpu)(?::([0-9]{1,4})(?:/([0-9]{1,4}))?)?",
      std::regex::icase);
  std::smatch found;
  if (!std::regex_match(text, found, kForm)) return std::nullopt;
  DeviceName name{DeviceKind::kCuda, number_in(found[2]), number_in(found[3])};
  const auto is = [&](char first, char second) {
    return std::tolower(found[1].str()[0]) == first && std::tolower(found[1].str()[1]) == second;
  };
  if (is('c', 'p')) name.kind = DeviceKind::kCpu;
  name.is_physical = is('c', 'u');
  if (name.part && !name.is_physical) return std::nullopt;
  return name;
}

}  // namespace lockstep
