#include "src/train/strategies/parameter_server/parameter_clients.h"

#include <algorithm>
#include <limits>

#include "src/core/base/message_text.h"

namespace lockstep::train {

namespace {

using Clock = std::chrono::steady_clock;
using State = ParameterClient::State;

constexpr std::chrono::seconds kGlance(
    1);  // a wait counts piece by piece: time in which this process was stopped does not

}  // namespace

bool ParameterClients::have_finished() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const ParameterClient& client) { return client.is(State::kFinished); });
}

std::int64_t ParameterClients::slowest() const {
  std::int64_t slowest = std::numeric_limits<std::int64_t>::max();
  for (const ParameterClient& client : clients_)
    if (!client.is(State::kFinished)) slowest = std::min(slowest, client.clock);
  return slowest;
}

void ParameterClients::expect_notice(std::size_t worker) {
  ParameterClient& client = clients_[worker];
  client.next = tasks_.group->recv_async(&client.notice_to_come, sizeof(Notice), DType::kUInt8, tasks_.workers[worker],
                                         kNoticeTag);
}

void ParameterClients::expect_floats(std::size_t worker, const Tensor& floats) {
  clients_[worker].next = tasks_.group->recv_async(floats.data<float>(), static_cast<std::size_t>(floats.count()),
                                                   DType::kFloat32, tasks_.workers[worker], kFloatsTag);
}

std::size_t ParameterClients::next_message() {
  std::vector<Work> works;
  std::vector<std::size_t> workers;
  for (std::size_t i = 0; i < clients_.size(); ++i)
    if (!clients_[i].is(State::kFinished)) works.push_back(clients_[i].next), workers.push_back(i);
  for (;;) {
    const auto begin = Clock::now();
    const auto come = wait_any(works, kGlance);
    const auto passed = std::min<std::chrono::nanoseconds>(Clock::now() - begin, 2 * kGlance);
    for (ParameterClient& client : clients_)
      if (client.waits()) client.waited += passed;
    if (come) return workers[*come];
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (clients_[i].waited >= tasks_.group->timeout()) report_missing(i);
  }
}

void ParameterClients::report_missing(std::size_t waiting) const {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < clients_.size(); ++i)
    if (!clients_[i].waits() && !clients_[i].is(State::kFinished))
      missing.push_back(fmt::format("{}, {} step {}", describe(i), clients_[i].is(State::kComputes) ? "in" : "after",
                                    clients_[i].clock + (clients_[i].is(State::kComputes) ? 1 : 0)));
  throw TimeoutError("{} has waited {:.1f} s for the weights; missing: {}", describe(waiting),
                     std::chrono::duration<double>(clients_[waiting].waited).count(), joined(missing, "; "));
}

}  // namespace lockstep::train
