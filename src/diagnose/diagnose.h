// The findings from the ranks' flight records: which rank, which operation, which ranks wait for which. Pure: records
// in, findings out.
//
// In every group the ranks make the same calls, numbered alike. So the group's trouble is at its frontier: the first
// call that not all ranks have finished. A rank that has not called it is waited for; a rank that called something else
// disagrees; if all have called it and some have finished, the rest were stopped inside or cut off.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/flight/flight_dump.h"

namespace lockstep::diagnose {

struct Finding {
  enum class Kind { kMismatch, kNotCalled, kNoRecord, kNotFinished, kMessage, kError, kStraggler, kIgnored, kQuiet };
  // One side of a disagreement, or one error: what, and the ranks that say so.
  struct Side {
    std::string what;
    std::vector<int> ranks;
  };
  Kind kind = Kind::kQuiet;
  std::string text;               // the sentence, complete
  std::string group = {};         // which group; empty: the job
  std::uint64_t sequence = 0;     // of the call at which it shows; 0: none
  std::vector<int> ranks = {};    // of the job: whom it is about
  std::vector<int> waiting = {};  // ranks that wait for them
  double seconds = 0;             // how long they have waited, or come late
  std::vector<Side> sides = {};
};

// Of one job's records. The most telling finding comes first; at least one.
std::vector<Finding> diagnose(const std::vector<FlightDump>& dumps);

const char* name_of(Finding::Kind kind);  // "mismatch", "not_called", ...

// "rank 2", "ranks 0, 1, 3"; of many the first: "ranks 0, 1, ... 31 and 68 more".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace lockstep::diagnose
