#include "bench/lib/environment_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>

#include "bench/lib/build_info.h"
#include "lockstep/core/environment.h"

namespace lockstep::bench {

namespace {

// The value of the first line "name<spaces>: value" of a file in /proc; "unknown" if there is none.
std::string value_in(const char* file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (line.rfind(name, 0) != 0 || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "unknown";
}

// x86-64 has the model's name; ARM has numbers (0x41: Arm Limited; the part is the design, such as 0xd0c: Neoverse N1).
std::string processor_name() {
  const char* const file = "/proc/cpuinfo";
  const std::string name = value_in(file, "model name");
  if (name != "unknown") return name;
  const std::string implementer = value_in(file, "CPU implementer");
  return implementer == "unknown" ? implementer
                                  : fmt::format("implementer {}, part {}", implementer, value_in(file, "CPU part"));
}

std::string kernel() {
  utsname names{};
  return ::uname(&names) == 0 ? fmt::format("{} {} {}", names.sysname, names.release, names.machine) : "unknown";
}

std::string compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

// The variables that control the library from outside, except secrets.
nlohmann::ordered_json variables() {
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    if (name.rfind(env::kPrefix, 0) == 0 && name != env::kToken && name != env::kTokenFile)
      found[name] = text.substr(name.size() + 1);
  }
  return found;
}

}  // namespace

nlohmann::ordered_json describe_environment(ProcessGroup& group) {
  std::array<double, 3> load{};
  const bool has_load = ::getloadavg(load.data(), 3) == 3;
  const auto pinning = group.all_gather_text(value_in("/proc/self/status", "Cpus_allowed_list"));
  const auto kernels = group.all_gather_text(kernel());
  nlohmann::ordered_json environment = {
      {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
      {"version", kVersion},
      {"commit", kCommit},
      {"compiler", compiler()},
      {"build_type", kBuildType},
      {"cpu", processor_name()},
      {"host_cores", std::thread::hardware_concurrency()},
      {"kernel", kernel()},
      {"ranks", group.world_size()},
      {"local_ranks", group.place().local_world_size},
      {"pinning", pinning},
      {"backend", group.backend().name()},
      {"transport", group.backend().transport()},
      {"load_average", has_load ? nlohmann::ordered_json(load) : nlohmann::ordered_json()},
  };
  environment["variables"] = variables();
  if (std::any_of(kernels.begin(), kernels.end(), [&](const std::string& other) { return other != kernels[0]; }))
    environment["kernels"] = kernels;
  return environment;
}

}  // namespace lockstep::bench
