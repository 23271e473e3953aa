// The contents of a rank's flight recorder, as plain data and as the JSON of rank<R>.json.
//
// Times are nanoseconds since 1970 on the rank's own clock; 0 means that the event has not happened. Ranks with the
// same boot id share one clock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

enum class FlightState { kIssued, kStarted, kFinished, kFailed };

struct FlightEntry {
  // Counts from 1 the group's collectives, its allocations, or this rank's entries in `messages`.
  std::uint64_t sequence = 0;
  std::string operation;  // "all_reduce", "send", "allocate", ...
  std::string dtype;
  std::uint64_t count = 0, bytes = 0;
  std::string reduce_op = {};  // empty: not a reduction
  int root = -1;
  int peer = -1, tag = -1;  // of a message; peer -1: any rank
  std::string purpose = {};
  int purpose_index = -1;
  std::uint32_t layout = 0;  // of unequal parts and coalesced calls: equal layouts have equal numbers
  FlightState state = FlightState::kIssued;
  std::int64_t issued_ns = 0, started_ns = 0, ended_ns = 0;

  bool has_ended() const { return state == FlightState::kFinished || state == FlightState::kFailed; }
};

struct FlightFailure {
  std::string text;
  std::int64_t at_ns = 0;
};

struct FlightGroup {
  std::string name;
  int rank = 0, world_size = 1;   // in the group
  std::vector<int> members = {};  // by rank of the group: the rank in the job; empty: the same
  std::string backend, transport;
  std::optional<FlightFailure> failure = {};
  std::vector<FlightEntry> operations = {};  // from the oldest known to the newest
  std::vector<FlightEntry> messages = {};    // messages and allocations
};

struct FlightDump {
  static constexpr int kVersion = 1;
  std::string job;  // equal for all ranks of one job, and different for other jobs; empty: unknown
  int rank = 0, world_size = 1;
  std::string host;
  long pid = 0;
  std::string boot_id;  // of the machine's kernel: ranks with equal ids share a clock
  std::string reason;   // why the record was written
  std::int64_t written_ns = 0, monotonic_ns = 0;
  std::vector<FlightGroup> groups = {};
};

std::string to_json(const FlightDump& dump);
// Throws FileError with `source` and the reason.
FlightDump flight_dump_from_json(const std::string& text, const std::string& source);

// "all_reduce #41 (bucket 2, float32 x 262144, sum)", "recv #7 from rank 2 (tag 0, float32 x 100)".
std::string describe(const FlightEntry& entry);

// Replaces the file atomically: a reader finds the old file or the complete new one. Makes the folder. Throws
// FileError.
void write_flight_file(const std::filesystem::path& path, const std::string& text);
std::string flight_file_name(int rank);  // "rank3.json"

}  // namespace lockstep
