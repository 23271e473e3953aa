// Puts the records of all ranks on one clock, sorted by group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/flight/flight_dump.h"

namespace lockstep::diagnose {

// The offsets to add to each record's times, so that all can be compared. Records of one machine (boot id) share its
// monotonic clock, which is exact. The difference between two machines' clocks is estimated from the ends of their
// common calls: all ranks end an all_reduce at nearly the same time, so the median difference is that of the clocks.
// With fewer than three such calls the wall clocks are used.
std::vector<std::int64_t> clock_shifts(const std::vector<FlightDump>& dumps);

struct RankView {
  int job_rank = 0;
  const FlightDump* dump = nullptr;  // null: the rank left no record of this group
  const FlightGroup* group = nullptr;
};

struct GroupView {
  std::string name;
  std::vector<RankView> ranks;  // by rank of the group
};

// Views of `dumps`, which must outlive them.
std::vector<GroupView> groups_of(const std::vector<FlightDump>& dumps);

}  // namespace lockstep::diagnose
