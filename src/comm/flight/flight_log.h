// The list of this process's flight recorders; writes them to files.
//
// LOCKSTEP_FLIGHT_DIR/rank<R>.json is written when a group fails (once for each group, before the error is thrown), on
// SIGUSR1 (by a thread that sleeps until the handler wakes it; without the folder, one sentence is logged), before
// SIGTERM ends the process, and on request. A file contains all existing groups of its rank, and the last that failed.
#pragma once

#include <memory>
#include <string>

#include "src/comm/flight/flight_recorder.h"

namespace lockstep::flight {

// A group's recorder and its constant description.
struct RecordedGroup {
  FlightGroup description;  // without failure and operations
  std::string job;
  int job_rank = 0, job_world_size = 1;
  FlightRecorder recorder;
};

// Adds the group until remove(). The first group installs the signal handlers, unless the program has its own or
// LOCKSTEP_FLIGHT_SIGNAL=0; the last group removes them.
void add(const std::shared_ptr<RecordedGroup>& group);
void remove(const std::shared_ptr<RecordedGroup>& group) noexcept;

// Writes the record of one rank of this process. An empty path means the folder; throws InvalidArgument if no folder is
// set.
void write(int job_rank, const std::string& reason, const std::string& path);

// "in all_reduce #41 (bucket 2, ...) for 12.3 s", or its last call.
std::string what_it_does(const FlightGroup& group, std::int64_t now_ns);

}  // namespace lockstep::flight
