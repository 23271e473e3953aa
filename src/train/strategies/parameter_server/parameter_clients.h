// A server's record of its workers, and the wait for the next message from any of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "src/train/strategies/parameter_server/parameter_tasks.h"

namespace lockstep::train {

struct ParameterClient {
  enum class State { kPaused, kJoins, kComputes, kWaits, kFinished };  // kJoins and kWaits wait for the weights

  State state = State::kPaused;
  std::int64_t clock = 0;  // steps
  Notice notice;           // the last one
  bool is(State other) const { return state == other; }
  bool waits() const { return is(State::kJoins) || is(State::kWaits); }

  // The receive of its next message, unless it has finished.
  Notice notice_to_come;
  Work next;
  std::chrono::nanoseconds waited{0};
};

// A receive of each worker's next message is always pending, so that a worker that leaves is noticed at once.
class ParameterClients {
 public:
  // `tasks` outlives this.
  explicit ParameterClients(const TaskTable& tasks) : tasks_(tasks), clients_(tasks.workers.size()) {}

  std::size_t size() const { return clients_.size(); }
  ParameterClient& operator[](std::size_t worker) { return clients_[worker]; }
  const std::vector<ParameterClient>& all() const { return clients_; }
  std::string describe(std::size_t worker) const { return tasks_.describe(tasks_.workers[worker]); }
  bool have_finished() const;
  std::int64_t slowest() const;  // the smallest clock of the workers that have not finished

  void expect_notice(std::size_t worker);
  void expect_floats(std::size_t worker, const Tensor& floats);
  // Blocks until a message has arrived, and returns its worker. Waits for paused workers as long as they live. Throws
  // TimeoutError with the workers that keep another one waiting longer than the group's deadline, and PeerLost for a
  // worker that leaves.
  std::size_t next_message();

 private:
  [[noreturn]] void report_missing(std::size_t waiting) const;

  const TaskTable& tasks_;
  std::vector<ParameterClient> clients_;  // by worker
};

}  // namespace lockstep::train
