#include "src/launch/supervise/attempts.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/token.h"
#include "src/launch/supervise/job.h"

namespace lockstep::launch {

namespace {

class Attempts {
 public:
  Attempts(const LaunchSpec& spec, const RankProgram& program, const DeviceFacts& devices, std::string token)
      : spec_(spec), base_{spec,    program,
                           devices, std::move(token),
                           "",      ProgressPages(spec.ranks),
                           {},      RestartPolicy(spec.max_restarts)} {
    if (base_.token.empty() && spec.nodes == 1) base_.fresh_token = base_.token = fresh_token();
    if (!spec.report_file.empty() && is_node_zero()) check_report_file();
  }

  int run() {
    for (int number = 0;; ++number) {
      std::unique_ptr<NodeLink> nodes;
      if (spec_.nodes > 1 && !meet(number, nodes)) return conclude("");
      if (nodes) number = nodes->attempt();
      base_.progress.clear();
      JobEnd end = Job(base_, number, std::move(nodes)).run();
      attempts_.push_back(std::move(end.attempt));
      if (!end.restarts) return conclude(end.why_no_restart);
      write_report();
      fmt::print(stderr, "lockrun: restarts the job: attempt {} of at most {}\n", number + 1, spec_.max_restarts);
    }
  }

 private:
  bool is_node_zero() const { return spec_.node_rank == 0; }
  int exit_code() const { return attempts_.back().exit_code; }

  // Returns false if the nodes of a job that restarts do not meet again.
  bool meet(int number, std::unique_ptr<NodeLink>& nodes) {
    try {
      nodes = join_nodes(spec_, base_.token, number, base_.ports);
      return true;
    } catch (const RendezvousError& error) {
      if (attempts_.empty()) throw;
      fmt::print(stderr, "lockrun: no restart: {}\n", error.what());
      return false;
    }
  }

  int conclude(const std::string& why_no_restart) {
    fmt::print(stderr, "{}", why_no_restart);
    if (attempts_.size() > 1 && is_node_zero()) fmt::print(stderr, "{}", text_of(attempts_, exit_code()));
    write_report();
    return exit_code();
  }

  void check_report_file() const {
    std::ofstream file(spec_.report_file, std::ios::app);
    if (!file)
      throw InvalidArgument("--report {}: the file cannot be written: {}", spec_.report_file, std::strerror(errno));
  }

  // A reader finds the old file or the new one.
  void write_report() const {
    if (spec_.report_file.empty() || !is_node_zero()) return;
    const std::string unfinished = spec_.report_file + ".new";
    std::error_code failure;
    bool is_written = false;
    {
      std::ofstream file(unfinished);
      is_written = static_cast<bool>((file << json_of(attempts_, spec_.max_restarts, exit_code())).flush());
    }
    if (is_written) std::filesystem::rename(unfinished, spec_.report_file, failure);
    if (!is_written || failure)
      fmt::print(stderr, "lockrun: --report {}: cannot be written{}\n", spec_.report_file,
                 failure ? ": " + failure.message() : "");
  }

  const LaunchSpec& spec_;
  JobBase base_;
  std::vector<Attempt> attempts_;
};

}  // namespace

int run_attempts(const LaunchSpec& spec, const RankProgram& program, const DeviceFacts& devices, std::string token) {
  return Attempts(spec, program, devices, std::move(token)).run();
}

int attempt() {
  for (const char* name : {env::kRestartCount, env::kTorchrunsRestartCount, env::kSlurmsRestartCount})
    if (const auto count = env::integer(name, 0, 1'000'000'000)) return static_cast<int>(*count);
  return 0;
}

}  // namespace lockstep::launch
