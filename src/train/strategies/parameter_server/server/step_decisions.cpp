#include "src/train/strategies/parameter_server/server/step_decisions.h"

#include <algorithm>

namespace lockstep::train {

void StepDecisions::announce(const StepDecision& decision) {
  std::fill(message_.begin(), message_.end(), 0);
  message_[0] = decision.step;
  for (const std::size_t worker : decision.workers) message_[1 + worker] = 1;
  send();
}

void StepDecisions::end() {
  std::fill(message_.begin(), message_.end(), 0);
  send();
}

void StepDecisions::send() {
  for (std::size_t server = 1; server < job_.tasks.servers.size(); ++server)
    job_.group().send(message_.data(), message_.size(), DType::kInt64, job_.tasks.servers[server], kDecisionTag);
}

void StepDecisions::expect() {
  if (!is_over_)
    next_ =
        job_.group().recv_async(message_.data(), message_.size(), DType::kInt64, job_.tasks.servers[0], kDecisionTag);
}

void StepDecisions::take() {
  next_.reset();
  if (message_[0] == 0) {
    is_over_ = true;
    return;
  }
  StepDecision decision{message_[0], {}};
  for (std::size_t worker = 0; worker + 1 < message_.size(); ++worker)
    if (message_[1 + worker] != 0) decision.workers.push_back(worker);
  pending_.push_back(std::move(decision));
  expect();
}

}  // namespace lockstep::train
