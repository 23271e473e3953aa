// The suite's cases: every backend, on every way that it takes, with every number of ranks.
//
// What a backend lacks or does not promise, its line in the table of capabilities says, and tests ask it. The ranks of
// `mpi` are processes: its cases exist where mpirun started the test, for that number of ranks. So are those of `nccl`
// on GPUs, which lockrun starts (scripts/test-gpu conformance).
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
  // TSan sees what ranks do to each other where they are threads over one mapping. Others it watches each alone: few of
  // them are enough.
  const int most_apart = kThreadSanitized ? 4 : 7;
  std::vector<Case> cases;
  for (const Wire wire : {Wire::kThreads, Wire::kMemfd, Wire::kTcp})
    for (const int n : ranks)
      if (wire != Wire::kMemfd || n <= most_apart) cases.push_back({wire, n});
  // Two alike nodes, one whose ranks are not neighbours, unlike ones, three.
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

// Ranks are threads, whose data goes through devices made of threads; in builds with NCCL's headers.
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
