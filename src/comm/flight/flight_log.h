// The flight recorders of this process: the list of them, and when they are written down.
//
// LOCKSTEP_FLIGHT_DIR/rank<R>.json is written when a group fails (before the error is thrown, once a group), on SIGUSR1
// (by a thread that sleeps until the handler wakes it; without the folder, one sentence goes to the log), before
// SIGTERM ends the process, and on request. A file holds all groups of its rank that live, and the last that failed.
#pragma once

#include <memory>
#include <string>

#include "src/comm/flight/flight_recorder.h"

namespace lockstep::flight {

// A group's recorder, and what does not change about the group.
struct RecordedGroup {
  FlightGroup description;  // without failure and operations
  std::string job;
  int job_rank = 0, job_world_size = 1;
  FlightRecorder recorder;
};

// Into the log, until remove(). The first group installs the handlers, unless the program has its own or
// LOCKSTEP_FLIGHT_SIGNAL=0; the last one takes them away.
void add(const std::shared_ptr<RecordedGroup>& group);
void remove(const std::shared_ptr<RecordedGroup>& group) noexcept;

// The record of one rank of this process. With an empty path it goes to the folder; throws InvalidArgument when there
// is none.
void write(int job_rank, const std::string& reason, const std::string& path);

// "in all_reduce #41 (bucket 2, ...) for 12.3 s", or what it did last.
std::string what_it_does(const FlightGroup& group, std::int64_t now_ns);

}  // namespace lockstep::flight
