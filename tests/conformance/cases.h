// The suite's cases: every backend, with each of its transports, and with several numbers of ranks.
//
// A backend's row in the table of capabilities says what it does not support or guarantee, and the tests read it. The
// ranks of `mpi` are processes: its cases exist if mpirun started the test, for that number of ranks. The same holds
// for `nccl` on GPUs, whose ranks lockrun starts (scripts/test-gpu conformance).
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/comm/capabilities.h"
#include "tests/conformance/ranks.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {

struct Case {
  Wire wire;
  int ranks;
  std::string nodes = {};  // as GroupSpec::nodes
};
inline std::string name_of(const Case& tested) {
  if (!tested.nodes.empty()) return std::string(name_of(tested.wire)) + "_" + tested.nodes;
  return std::string(name_of(tested.wire)) + "_" + std::to_string(tested.ranks) + "_ranks";
}
inline void PrintTo(const Case& tested, std::ostream* out) {
  *out << name_of(tested);
}  // NOLINT: GoogleTest finds it by its name

class OverBackends : public ::testing::TestWithParam<Case> {
 protected:
  GroupSpec spec() const { return {.wire = GetParam().wire, .ranks = GetParam().ranks, .nodes = GetParam().nodes}; }
  int ranks() const { return GetParam().ranks; }
  const Capabilities& promises() const { return capabilities_of(backend_of(GetParam().wire)); }
};

inline std::vector<Case> ring_cases(std::initializer_list<int> ranks) {
  // TSan sees the accesses of ranks to each other's memory only if they are threads over one mapping. It watches other
  // ranks each alone, for which few cases are enough.
  const int most_apart = kThreadSanitized ? 4 : 7;
  std::vector<Case> cases;
  for (const Wire wire : {Wire::kThreads, Wire::kMemfd, Wire::kTcp})
    for (const int n : ranks)
      if (wire != Wire::kMemfd || n <= most_apart) cases.push_back({wire, n});
  // Two equal nodes; nodes whose ranks are not neighbours; unequal nodes; three nodes.
  for (const char* nodes : {"aabb", "abba", "aab", "aabbcc"})
    cases.push_back({Wire::kNodeThreads, static_cast<int>(std::strlen(nodes)), nodes});
  for (const std::string nodes : {"aabb", "aaabbbb", "aabbcc"})
    if (const int n = static_cast<int>(nodes.size()); n <= most_apart) cases.push_back({Wire::kNodes, n, nodes});
  return cases;
}

inline std::vector<Case> mpi_cases() {
  if (mpi_ranks() == 0) return {};
  return {{Wire::kMpi, mpi_ranks()}};
}

// The ranks are threads, and their data is on devices simulated by threads; only in builds with NCCL's headers.
inline std::vector<Case> nccl_cases() {
#ifdef STUB_NCCL
  return {{Wire::kNccl, 1}, {Wire::kNccl, 2}, {Wire::kNccl, 3}, {Wire::kNccl, 4}};
#else
  return {};
#endif
}

inline std::vector<Case> gpu_cases() {
#ifdef STUB_NCCL
  if (gpu_ranks() != 0) return {{Wire::kGpu, gpu_ranks()}};
#endif
  return {};
}

inline std::vector<Case> alone_cases() { return {{Wire::kLocal, 1}, {Wire::kDelay, 1}, {Wire::kRecording, 1}}; }

inline std::string name_of_case(const ::testing::TestParamInfo<Case>& tested) { return name_of(tested.param); }

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): GoogleTest's own macro needs the suite's name.
#define LOCKSTEP_OVER_ALL_BACKENDS(suite, cases_of_ring)                                                  \
  INSTANTIATE_TEST_SUITE_P(Ring, suite, ::testing::ValuesIn(cases_of_ring), name_of_case);                \
  INSTANTIATE_TEST_SUITE_P(Recording, suite, ::testing::Values(Case{Wire::kRecording, 3}), name_of_case); \
  INSTANTIATE_TEST_SUITE_P(Alone, suite, ::testing::ValuesIn(alone_cases()), name_of_case);               \
  INSTANTIATE_TEST_SUITE_P(Nccl, suite, ::testing::ValuesIn(nccl_cases()), name_of_case);                 \
  INSTANTIATE_TEST_SUITE_P(Gpu, suite, ::testing::ValuesIn(gpu_cases()), name_of_case);                   \
  INSTANTIATE_TEST_SUITE_P(Mpi, suite, ::testing::ValuesIn(mpi_cases()), name_of_case)

}  // namespace lockstep::testing
