// Derives findings from the ranks' flight records: which rank, which operation, which ranks wait for which. Pure:
// records in, findings out.
//
// In every group the ranks make the same calls with the same numbers. So a problem of the group shows at its frontier:
// the first call that not all ranks have finished. A rank that has not made it keeps the others waiting; a rank that
// made a different call disagrees; if all have made it and some have finished, the rest were stopped in it or cut off.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/flight/flight_dump.h"

namespace lockstep::diagnose {

struct Finding {
  enum class Kind { kMismatch, kNotCalled, kNoRecord, kNotFinished, kMessage, kError, kStraggler, kIgnored, kQuiet };
  // One side of a mismatch, or one error, and its ranks.
  struct Side {
    std::string what;
    std::vector<int> ranks;
  };
  Kind kind = Kind::kQuiet;
  std::string text;               // a complete sentence
  std::string group = {};         // the group's name; empty: the job
  std::uint64_t sequence = 0;     // of the call at which it shows; 0: none
  std::vector<int> ranks = {};    // ranks in the job that the finding is about
  std::vector<int> waiting = {};  // ranks that wait for them
  double seconds = 0;             // how long they have waited, or how late the rank is
  std::vector<Side> sides = {};
};

// Takes the records of one job. Returns at least one finding, the most informative first.
std::vector<Finding> diagnose(const std::vector<FlightDump>& dumps);

const char* name_of(Finding::Kind kind);  // "mismatch", "not_called", ...

// "rank 2", "ranks 0, 1, 3"; for many ranks: "ranks 0, 1, ... 31 and 68 more".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace lockstep::diagnose
