// A handle to a call's entry in the group's flight recorder.
//
// The process group opens an entry for every call and records the progress of the calls that it runs itself. A backend
// that executes operations later, on its own thread, records theirs with the functions of
// src/comm/flight/flight_recorder.h.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace lockstep {

class FlightRecorder;
struct FlightEntrySlot;

struct FlightNote {
  FlightRecorder* recorder = nullptr;  // null: this call is not recorded
  FlightEntrySlot* slot = nullptr;
  std::uint64_t number = 0;  // tells the entry from a later one in the same slot
};

}  // namespace lockstep
#pragma GCC visibility pop
