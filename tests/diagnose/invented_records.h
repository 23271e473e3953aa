// Flight records that tests make up.
#pragma once

#include <cstdint>

#include "src/diagnose/diagnose.h"

namespace lockstep::diagnose {

inline constexpr std::int64_t kSecond = 1'000'000'000;
inline constexpr std::int64_t kStart = 1'000 * kSecond;

inline FlightEntry bucket(std::uint64_t sequence, FlightState state, std::int64_t issued, std::int64_t ended = 0) {
  return {.sequence = sequence,
          .operation = "all_reduce",
          .dtype = "float32",
          .count = 100,
          .bytes = 400,
          .reduce_op = "sum",
          .purpose = "bucket",
          .purpose_index = static_cast<int>(sequence % 3),
          .state = state,
          .issued_ns = issued,
          .started_ns = state == FlightState::kIssued ? 0 : issued,
          .ended_ns = ended};
}

// A rank that finished `finished` buckets, one each second from kStart, and wrote its record at 60 s.
inline FlightDump rank_of(int rank, int world_size, std::uint64_t finished) {
  FlightDump dump{.job = "job",
                  .rank = rank,
                  .world_size = world_size,
                  .host = "a",
                  .pid = 100 + rank,
                  .boot_id = "boot",
                  .reason = "error"};
  dump.written_ns = kStart + 60 * kSecond;
  dump.monotonic_ns = 60 * kSecond;
  FlightGroup group{.name = "world", .rank = rank, .world_size = world_size, .backend = "host", .transport = "shm"};
  for (std::uint64_t i = 1; i <= finished; ++i) {
    const std::int64_t at = kStart + static_cast<std::int64_t>(i) * kSecond;
    group.operations.push_back(bucket(i, FlightState::kFinished, at, at + kSecond / 1000));
  }
  dump.groups.push_back(group);
  return dump;
}

inline void enter(FlightDump& dump, std::uint64_t sequence, std::int64_t issued,
                  FlightState state = FlightState::kStarted, std::int64_t ended = 0) {
  dump.groups[0].operations.push_back(bucket(sequence, state, issued, ended));
}

}  // namespace lockstep::diagnose
