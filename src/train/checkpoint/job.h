// Which job wrote a checkpoint, and whether it still runs: the process that writes stands for its job.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::checkpoint {

struct Job {
  std::string id;  // random; empty: not known, as in checkpoints of versions that kept none
  std::string host;
  std::int64_t process = 0;
  std::int64_t start_ticks =
      0;                // of the process, since its machine was started: tells it from a later one with its number
  std::string started;  // in UTC, for people

  // "job 1f2e3d4c (process 12 on host, started 2026-01-31 12:00:00 UTC)"
  std::string text() const;
  // Of processes on this host alone, and not of this one's own job.
  bool runs_on_this_host() const;
};

void to_json(nlohmann::json& json, const Job& job);
// What is missing or of another type stays empty.
Job job_of(const nlohmann::json& json);

// Of this process; its forked children count to it.
const Job& this_job();

}  // namespace lockstep::checkpoint
