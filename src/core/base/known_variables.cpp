#include "src/core/base/known_variables.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <regex>
#include <string_view>

#include "lockstep/core/environment.h"

namespace lockstep::env {

namespace {

constexpr std::array kForTests = {"TEST_", "SOAK_", "FUZZ_"};

// Levenshtein distance: the number of letters to insert, remove or replace.
std::size_t distance_between(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= one.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= other.size(); ++j) {
      const std::size_t replaced = diagonal + (one[i - 1] == other[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// ": did you mean X?", or "" if no variable's name is similar.
std::string guess_at(const std::string& name) {
  const auto& known = known_variables();
  const std::string& nearest =
      *std::min_element(known.begin(), known.end(), [&](const std::string& one, const std::string& other) {
        return distance_between(name, one) < distance_between(name, other);
      });
  const std::size_t own = name.size() - std::string_view(kPrefix).size();
  return distance_between(name, nearest) * 2 <= own ? fmt::format(": did you mean {}?", nearest) : "";
}

// Kubernetes describes each Service of the namespace to its pods: for a service lockstep-x it sets
// LOCKSTEP_X_SERVICE_HOST, LOCKSTEP_X_PORT ("tcp://10.0.0.1:80") and others.
bool is_of_kubernetes(const std::string& name, const std::string& value) {
  static const std::regex kNames("_SERVICE_(HOST|PORT)(_|$)|_PORT_[0-9]+_(TCP|UDP|SCTP)(_|$)");
  static const std::regex kAddress("(tcp|udp|sctp)://.*");
  return std::regex_search(name, kNames) || (name.ends_with("_PORT") && std::regex_match(value, kAddress));
}

}  // namespace

const std::vector<std::string>& known_variables() {
  static const std::vector<std::string> kKnown = {kToken,          kTokenFile,
                                                  kInsecure,       kBackend,
                                                  kTransport,      kInterface,
                                                  kNode,           kTimeout,
                                                  kStoreTimeout,   kStallTimeout,
                                                  kTuning,         kReduceOrder,
                                                  kFlightDir,      kFlightSignal,
                                                  kLogLevel,       kData,
                                                  kDevice,         kLogicalDevices,
                                                  kGpuMemory,      kCudaLibrary,
                                                  kNcclLibrary,    kNcclBlocking,
                                                  kShareGpu,       kDeterministic,
                                                  kTf32,           kCudnnAutotune,
                                                  kCudnnTuning,    kCudnnNondeterministic,
                                                  kCudaWorkspace,  kTerminalWidth,
                                                  kSpawnCall,      kJob,
                                                  kTaskIndex,      kNumPs,
                                                  kNumWorkers,     kStoreHosted,
                                                  kStorePort,      kIsa,
                                                  kDelayAlpha,     kDelayBandwidth,
                                                  kSocketsPerPeer, kRestartCount,
                                                  kMaxRestarts,    kAttempt,
                                                  kProgress};
  return kKnown;
}

std::vector<std::string> doubts_about(const std::vector<std::string>& environment) {
  std::vector<std::string> doubts;
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('=')),
                      value = entry.substr(std::min(entry.size(), name.size() + 1));
    const std::string prefix = kPrefix;
    const auto is_for = [&](const char* tests) { return name.starts_with(prefix + tests); };
    if (!name.starts_with(prefix) || std::any_of(kForTests.begin(), kForTests.end(), is_for)) continue;
    const auto& known = known_variables();
    if (std::find(known.begin(), known.end(), name) != known.end() || is_of_kubernetes(name, value)) continue;
    doubts.push_back(fmt::format("environment: {} is set, but Lockstep has no such variable{}", name, guess_at(name)));
  }
  return doubts;
}

std::vector<std::string> doubts_about_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return doubts_about(environment);
}

}  // namespace lockstep::env
