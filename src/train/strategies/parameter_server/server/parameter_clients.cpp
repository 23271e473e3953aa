#include "src/train/strategies/parameter_server/server/parameter_clients.h"

#include <algorithm>
#include <thread>

#include "lockstep/core/log.h"
#include "src/core/base/message_text.h"
#include "src/train/strategies/parameter_server/server/blockers.h"

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

std::int64_t ParameterClients::slowest() const { return slowest_of(clients_); }

std::size_t ParameterClients::active() const {
  return static_cast<std::size_t>(std::count_if(clients_.begin(), clients_.end(),
                                                [](const ParameterClient& client) { return client.is_active(); }));
}

// -- messages

template <typename Call> auto ParameterClients::over_link(std::size_t worker, const Call& call) const {
  if (!job_.options.allow_worker_failures) return call(link(worker));
  try {
    return call(link(worker));
  } catch (const Error& error) {  // of a group of two, whichever kind it is: the worker's alone
    throw LostWorker(worker, error.what());
  }
}

void ParameterClients::expect_notice(std::size_t worker) {
  expect(worker, &clients_[worker].notice_to_come, sizeof(Notice), DType::kUInt8, kNoticeTag);
}

void ParameterClients::expect_floats(std::size_t worker, const Tensor& floats) {
  expect(worker, floats.data<float>(), static_cast<std::size_t>(floats.count()), DType::kFloat32, kFloatsTag);
}

void ParameterClients::expect(std::size_t worker, void* data, std::size_t count, DType dtype, int tag) {
  clients_[worker].next =
      over_link(worker, [&](const Link& link) { return link.group->recv_async(data, count, dtype, link.peer, tag); });
}

Work ParameterClients::send_answer(std::size_t worker) {
  return over_link(worker, [&](const Link& link) {
    return link.group->send_async(&clients_[worker].answer, sizeof(Answer), DType::kUInt8, link.peer, kAnswerTag);
  });
}

Work ParameterClients::send_floats(std::size_t worker, const Tensor& floats) {
  sent_ += floats.bytes();
  return over_link(worker, [&](const Link& link) {
    return link.group->send_async(floats.data<float>(), static_cast<std::size_t>(floats.count()), DType::kFloat32,
                                  link.peer, kFloatsTag);
  });
}

Work ParameterClients::send_rest(std::size_t worker, const std::vector<std::byte>& rest) {
  if (rest.empty()) return {};
  sent_ += rest.size();
  return over_link(worker, [&](const Link& link) {
    return link.group->send_async(rest.data(), rest.size(), DType::kUInt8, link.peer, kRestTag);
  });
}

void ParameterClients::send_state(std::size_t worker, const std::string& state) {
  over_link(worker, [&](const Link& link) { send_text(link, state, kStateTag); });
  sent_ += state.size();
}

void ParameterClients::send_rate(std::size_t worker, float lr) {
  over_link(worker, [&](const Link& link) { link.group->send(&lr, 1, DType::kFloat32, link.peer, kRateTag); });
  sent_ += sizeof lr;
}

void ParameterClients::send_stop(std::size_t worker, bool is_requested) {
  const std::int32_t stop = is_requested ? 1 : 0;
  over_link(worker, [&](const Link& link) { link.group->send(&stop, 1, DType::kInt32, link.peer, kStopTag); });
}

void ParameterClients::receive_floats(std::size_t worker, const Tensor& floats) {
  over_link(worker, [&](const Link& link) {
    link.group->recv(floats.data<float>(), static_cast<std::size_t>(floats.count()), DType::kFloat32, link.peer,
                     kFloatsTag);
  });
  received_ += floats.bytes();
}

void ParameterClients::receive_rest(std::size_t worker, std::vector<std::byte>& rest) {
  if (rest.empty()) return;
  over_link(worker,
            [&](const Link& link) { link.group->recv(rest.data(), rest.size(), DType::kUInt8, link.peer, kRestTag); });
  received_ += rest.size();
}

std::string ParameterClients::receive_state(std::size_t worker) {
  std::string state = over_link(worker, [&](const Link& link) { return receive_text(link, kStateTag); });
  received_ += state.size();
  return state;
}

void ParameterClients::wait(std::size_t worker, const Work& work) const {
  over_link(worker, [&](const Link&) { work.wait(); });
}

// -- events

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
      if (clients_[i].waits() && clients_[i].waited >= job_.group().timeout()) return overdue(i);
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
    } catch (const Error& error) {
      return ServerEvent{ServerEvent::Kind::kLost, worker, error.what()};
    }
  }
  return std::nullopt;
}

ServerEvent ParameterClients::overdue(std::size_t waiting) const {
  const auto seconds = std::chrono::duration<double>(clients_[waiting].waited).count();
  const std::vector<std::size_t> blockers =
      blockers_of(waiting, clients_, {.has_begun = has_begun_, .has_backup = job_.options.backup_workers > 0});
  if (job_.options.allow_worker_failures && !blockers.empty())
    return {ServerEvent::Kind::kLost, blockers.front(),
            fmt::format("{} has waited {:.1f} s for it", describe(waiting), seconds)};
  std::vector<std::string> missing;
  for (const std::size_t i : blockers)
    missing.push_back(fmt::format("{}, {} step {}", describe(i), clients_[i].is(State::kComputes) ? "in" : "after",
                                  clients_[i].clock + (clients_[i].is(State::kComputes) ? 1 : 0)));
  if (missing.empty()) missing.push_back("the decision of ps:0 about this step");
  throw TimeoutError("{} has waited {:.1f} s for the weights; missing: {}", describe(waiting), seconds,
                     joined(missing, "; "));
}

void ParameterClients::lose(std::size_t worker, const std::string& why) {
  const bool gave = clients_[worker].is(State::kGives);
  clients_[worker].state = State::kLost;
  const std::string own = name_of(job_.tasks.own);
  link(worker).group->abort(fmt::format("{} goes on without {}", own, describe(worker)));  // if it lives, it ends, too
  const auto has_finished = [](const ParameterClient& client) { return client.is(State::kFinished); };
  if (active() == 0 && std::none_of(clients_.begin(), clients_.end(), has_finished))
    throw PeerLost("parameter_server: {}: {} is lost, and no worker is left: {}", own, describe(worker), why);
  if (worker == 0 && !has_begun_)
    throw PeerLost(
        "parameter_server: {}: {} is lost before its first step, in which its weights begin the job: the weights of "
        "another worker, which may have loaded no checkpoint, cannot replace them; start the job again: {}",
        own, describe(worker), why);
  if (gave && job_.tasks.servers.size() > 1)
    throw PeerLost(
        "parameter_server: {}: {} is lost while it sent changed weights: other servers may have theirs already, and no "
        "worker has all of them; start the job again from its last checkpoint: {}",
        own, describe(worker), why);
  log::warn("parameter_server: {}: {} is lost after step {}, and the job goes on with {} worker{}{}: {}", own,
            describe(worker), clients_[worker].clock, active(), active() == 1 ? "" : "s",
            gave ? " and the weights from before those that it was sending" : "", why);
}

}  // namespace lockstep::train
