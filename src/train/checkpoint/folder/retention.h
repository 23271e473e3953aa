// The order of the checkpoints in a folder, and which of them a save removes.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace lockstep::train::checkpoint {

// A checkpoint in the folder, with what its manifest says. Older versions wrote no sequence numbers and no times.
struct KeptCheckpoint {
  std::string name;
  std::int64_t sequence = 0, step = 0;
  std::int64_t saved_at = 0;  // seconds since 1970
};

// Newest first: by the sequence numbers, then by the steps, then by the names.
void sort_by_age(std::vector<KeptCheckpoint>& checkpoints);

// One more than the sequence numbers of all of them.
std::int64_t next_sequence(const std::vector<KeptCheckpoint>& checkpoints);

struct Retention {
  int keep = 1;                        // newest checkpoints, including the new one
  std::chrono::seconds keep_for{0};    // and all that are younger
  std::set<std::string> damaged = {};  // names: these do not count as kept
};

// The names of those that go once a checkpoint of the time `saved_at` is in place.
std::vector<std::string> names_to_remove(std::vector<KeptCheckpoint> others, std::int64_t saved_at,
                                         const Retention& retention);

}  // namespace lockstep::train::checkpoint
