#include "src/train/strategies/parameter_server/parameter_clients.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "src/core/base/message_text.h"

namespace lockstep::train {

namespace {

using Clock = std::chrono::steady_clock;
using State = ParameterClient::State;

constexpr std::chrono::seconds kGlance(
    1);  // a wait counts piece by piece: time in which this process was stopped does not
constexpr std::chrono::microseconds kShortestNap(20), kLongestNap(500);

}  // namespace

bool ParameterClients::send_no_more() const {
  return std::none_of(clients_.begin(), clients_.end(), [](const ParameterClient& client) { return client.sends(); });
}

std::int64_t ParameterClients::slowest() const {
  std::int64_t slowest = std::numeric_limits<std::int64_t>::max();
  for (const ParameterClient& client : clients_)
    if (client.is_active()) slowest = std::min(slowest, client.clock);
  return slowest;
}

std::size_t ParameterClients::active() const {
  return static_cast<std::size_t>(std::count_if(clients_.begin(), clients_.end(),
                                                [](const ParameterClient& client) { return client.is_active(); }));
}

void ParameterClients::expect_notice(std::size_t worker) {
  ParameterClient& client = clients_[worker];
  client.next = link(worker).group->recv_async(&client.notice_to_come, sizeof(Notice), DType::kUInt8, link(worker).peer,
                                               kNoticeTag);
}

void ParameterClients::expect_floats(std::size_t worker, const Tensor& floats) {
  clients_[worker].next = link(worker).group->recv_async(floats.data<float>(), static_cast<std::size_t>(floats.count()),
                                                         DType::kFloat32, link(worker).peer, kFloatsTag);
}

ServerEvent ParameterClients::next(const std::optional<Work>& decision) {
  std::vector<std::size_t> workers;
  for (std::size_t i = 0; i < clients_.size(); ++i)
    if (clients_[i].sends()) workers.push_back(i);
  for (;;) {
    const auto begin = Clock::now();
    const auto event = wait_for_any(workers, decision);
    const auto passed = std::min<std::chrono::nanoseconds>(Clock::now() - begin, 2 * kGlance);
    for (ParameterClient& client : clients_)
      if (client.waits()) client.waited += passed;
    if (event) return *event;
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (clients_[i].waited >= job_.group().timeout())
        if (auto lost = overdue(i)) return *lost;
  }
}

std::optional<ServerEvent> ParameterClients::wait_for_any(const std::vector<std::size_t>& workers,
                                                          const std::optional<Work>& decision) {
  if (job_.options.allow_worker_failures) {
    const auto until = Clock::now() + kGlance;
    for (auto nap = kShortestNap; Clock::now() < until; nap = std::min(2 * nap, kLongestNap)) {
      if (auto event = look_at_each(workers)) return event;
      std::this_thread::sleep_for(nap);
    }
    return std::nullopt;
  }
  std::vector<Work> works;
  for (const std::size_t worker : workers) works.push_back(clients_[worker].next);
  if (decision) works.push_back(*decision);
  const auto come = wait_any(works, kGlance);
  if (!come) return std::nullopt;
  if (*come == workers.size()) return ServerEvent{ServerEvent::Kind::kDecision};
  return ServerEvent{ServerEvent::Kind::kMessage, workers[*come]};
}

// The links are different groups, and each throws for its worker alone.
std::optional<ServerEvent> ParameterClients::look_at_each(const std::vector<std::size_t>& workers) const {
  for (const std::size_t worker : workers) {
    try {
      if (clients_[worker].next.done()) return ServerEvent{ServerEvent::Kind::kMessage, worker};
    } catch (const PeerLost& error) {
      return ServerEvent{ServerEvent::Kind::kLost, worker, error.what()};
    }
  }
  return std::nullopt;
}

std::optional<ServerEvent> ParameterClients::overdue(std::size_t waiting) const {
  std::vector<std::string> missing;
  const auto seconds = std::chrono::duration<double>(clients_[waiting].waited).count();
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    if (clients_[i].waits() || !clients_[i].is_active()) continue;
    if (job_.options.allow_worker_failures)
      return ServerEvent{ServerEvent::Kind::kLost, i,
                         fmt::format("{} has waited {:.1f} s for it", describe(waiting), seconds)};
    missing.push_back(fmt::format("{}, {} step {}", describe(i), clients_[i].is(State::kComputes) ? "in" : "after",
                                  clients_[i].clock + (clients_[i].is(State::kComputes) ? 1 : 0)));
  }
  throw TimeoutError("{} has waited {:.1f} s for the weights; missing: {}", describe(waiting), seconds,
                     joined(missing, "; "));
}

}  // namespace lockstep::train
