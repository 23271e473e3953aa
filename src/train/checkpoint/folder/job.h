// The job that wrote a checkpoint, and whether it still runs. The process that writes represents its job.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::train::checkpoint {

struct Job {
  std::string id;  // random; empty if unknown, as in checkpoints of older versions
  std::string host;
  std::int64_t process = 0;
  // When the process started, counted from its machine's start: tells it from a later process with the same number.
  std::int64_t start_ticks = 0;
  std::string started;  // in UTC, for people

  // "job 1f2e3d4c (process 12 on host, started 2026-01-31 12:00:00 UTC)"
  std::string text() const;
  // False for a process of another host, and for this job.
  bool runs_on_this_host() const;
};

void to_json(nlohmann::json& json, const Job& job);
// A field that is missing or of another type stays empty.
Job job_of(const nlohmann::json& json);

// The job of this process and of its forked children.
const Job& this_job();

}  // namespace lockstep::train::checkpoint
