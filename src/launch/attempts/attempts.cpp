#include "src/launch/attempts/attempts.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/token.h"
#include "src/core/base/message_text.h"
#include "src/launch/attempts/job_attempt.h"

namespace lockstep::launch {

namespace {

namespace fs = std::filesystem;

// A signal that ends the job came between two attempts.
struct Interrupted {
  int signal;
};

class Attempts {
 public:
  Attempts(const LaunchSpec& spec, const RankProgram& program, const DeviceFacts& devices, std::string token)
      : spec_(spec), base_{spec, program, devices, std::move(token), "", {}, RestartPolicy(spec.max_restarts), {}, {}} {
    if (base_.token.empty() && spec.nodes == 1) base_.fresh_token = base_.token = fresh_token();
    if (!spec.report_file.empty() && is_node_zero()) check_report_file();
  }

  int run() {
    try {
      while (run_one()) {
      }
    } catch (const Interrupted& by) {
      fmt::print(stderr, "lockrun: {}: no restart\n", name_of_signal(by.signal));
      attempts_.back().end = Attempt::End::kInterrupted;
      attempts_.back().exit_code = 128 + by.signal;
    } catch (...) {
      if (!attempts_.empty()) conclude();
      throw;
    }
    conclude();
    return exit_code();
  }

 private:
  bool is_node_zero() const { return spec_.node_rank == 0; }
  int exit_code() const { return attempts_.back().exit_code; }

  // Returns whether another attempt follows.
  bool run_one() {
    int number = attempts_.empty() ? 0 : attempts_.back().number + 1;
    std::unique_ptr<NodeLink> nodes;
    if (spec_.nodes > 1 && !meet({.attempt = number, .look = [this] { look_for_signals(); }}, nodes)) return false;
    if (nodes) number = nodes->attempt();
    JobEnd end = JobAttempt(base_, number, std::move(nodes)).run();
    attempts_.push_back(std::move(end.attempt));
    if (end.leaves) tell_that_this_node_leaves();
    fmt::print(stderr, "{}", end.answer.why_not);
    if (!end.answer.restarts) return false;
    write_report();
    fmt::print(stderr, "lockrun: restarts the job: attempt {} of at most {}{}\n", number + 1, spec_.max_restarts,
               end.answer.pause.count() == 0 ? "" : fmt::format(", in {} s", end.answer.pause.count()));
    wait(end.answer.pause);
    return true;
  }

  // Returns false if the nodes of a job that restarts do not meet again.
  bool meet(const NodeArrival& arrival, std::unique_ptr<NodeLink>& nodes) {
    try {
      nodes = join_nodes(spec_, base_.token, arrival, base_.ports);
      return true;
    } catch (const RendezvousError& error) {
      if (attempts_.empty()) throw;
      fmt::print(stderr, "lockrun: no restart: {}\n", error.what());
      return false;
    }
  }

  void tell_that_this_node_leaves() {
    fmt::print(stderr, "lockrun: no restart: this lockrun was interrupted\n");
    try {
      join_nodes(spec_, base_.token,
                 {.attempt = attempts_.back().number + 1,
                  .leaving = fmt::format("lockrun on node {} was interrupted", spec_.node_rank)},
                 base_.ports);
    } catch (const RendezvousError&) {  // node 0 answers so
    }
  }

  void look_for_signals() {
    if (!base_.signals) return;
    while (const int signal = base_.signals->next())
      if (ends_job(signal)) throw Interrupted{signal};  // there are no ranks to which a notice could be passed on
  }

  void wait(std::chrono::milliseconds time) {
    const auto until = Clock::now() + time;
    for (look_for_signals(); Clock::now() < until; look_for_signals()) ::poll(nullptr, 0, kLookMs);
  }

  void conclude() const {
    if (attempts_.size() > 1 && is_node_zero()) fmt::print(stderr, "{}", text_of(attempts_, exit_code()));
    write_report();
  }

  // Replacing anything but a file would destroy it: /dev/null, say.
  void check_report_file() const {
    std::error_code failure;
    const fs::file_status status = fs::status(spec_.report_file, failure);
    if (fs::exists(status) && !fs::is_regular_file(status))
      throw InvalidArgument("--report {}: it is not a regular file", spec_.report_file);
    const std::string unfinished = unfinished_report();
    const bool is_writable = static_cast<bool>(std::ofstream(unfinished));
    const int error = errno;
    fs::remove(unfinished, failure);
    if (!is_writable)
      throw InvalidArgument("--report {}: the file cannot be written: {}", spec_.report_file, std::strerror(error));
  }

  // The file itself, if the name is a link to one.
  std::string report_file() const {
    std::error_code failure;
    const fs::path file = fs::canonical(spec_.report_file, failure);
    return failure ? spec_.report_file : file.string();
  }
  std::string unfinished_report() const { return report_file() + ".new"; }

  // A reader finds the old file or the new one.
  void write_report() const {
    if (spec_.report_file.empty() || !is_node_zero()) return;
    std::error_code failure;
    bool is_written = false;
    {
      std::ofstream file(unfinished_report());
      is_written = static_cast<bool>((file << json_of(attempts_, spec_.max_restarts, exit_code())).flush());
    }
    if (is_written) fs::rename(unfinished_report(), report_file(), failure);
    if (!is_written || failure)
      fmt::print(stderr, "lockrun: --report {}: the file cannot be written{}\n", spec_.report_file,
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
