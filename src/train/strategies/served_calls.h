// For calls that all ranks of a job make and in which some serve, as Trainer's: the workers compute, the servers serve
// until all workers have come to the call's end, and then get worker 0's result.
#pragma once

#include <string>

namespace lockstep::train {

// On a server.
class CallServer {
 public:
  virtual ~CallServer() = default;

  // Blocks until all workers have called end_call(). Returns worker 0's `result`. Throws what the loss of a worker or a
  // disagreement of workers causes.
  virtual std::string serve_call() = 0;
};

// On a worker.
class CallWorker {
 public:
  virtual ~CallWorker() = default;

  // From now on the servers serve in such calls alone: this strategy's destructor notifies nobody.
  virtual void expect_calls() = 0;
  virtual void end_call(const std::string& result) = 0;
};

}  // namespace lockstep::train
