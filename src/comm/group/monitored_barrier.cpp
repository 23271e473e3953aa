// The barrier that names all missing ranks: every rank sends a message to every other one, and checks until the
// deadline which messages have arrived.
//
// It uses messages so that it works with every backend and transport, does not depend on any particular rank being
// alive, and detects a dead peer at once.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <thread>

#include "lockstep/core/error.h"
#include "src/comm/group/process_group_impl.h"
#include "src/comm/net/backoff.h"
#include "src/comm/operation/call_checks.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int32_t kTag = -2;  // the tags of programs are >= 0
constexpr auto kNap = std::chrono::milliseconds(1);

std::string name_ranks(const std::vector<int>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) names += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return names;
}

// This rank's messages from and to every other rank.
class BarrierMessages {
 public:
  BarrierMessages(Backend& backend, const Place& place, std::uint64_t sequence, std::vector<std::uint64_t>& mail,
                  std::chrono::milliseconds timeout) {
    const auto ranks = static_cast<std::size_t>(place.world_size);
    mail.resize(ranks + 1);
    mail[ranks] = sequence;
    for (int peer = 0; peer < place.world_size; ++peer) {
      if (peer == place.rank) continue;
      Message message{&mail[static_cast<std::size_t>(peer)], 1, DType::kInt64, peer, kTag, nullptr, timeout};
      awaited_.emplace_back(peer, backend.receive(message));
      message.data = &mail[ranks];
      sent_.push_back(backend.send(message));
    }
  }

  // The ranks whose message has not arrived yet. Throws the error that ends the group.
  std::vector<int> missing() {
    std::vector<int> ranks;
    for (const auto& [peer, letter] : awaited_)
      if (!letter.done()) ranks.push_back(peer);
    return ranks;
  }
  bool all_sent() {
    return std::all_of(sent_.begin(), sent_.end(), [](const Work& letter) { return letter.done(); });
  }

 private:
  std::vector<std::pair<int, Work>> awaited_;
  std::vector<Work> sent_;
};

}  // namespace

void ProcessGroup::Impl::meet_all(const Operation& barrier) {
  Backend& cpu = *backends[static_cast<std::size_t>(DeviceKind::kCpu)];
  const std::uint64_t sequence = barrier.signature.sequence;
  BarrierMessages letters(cpu, place, sequence, barrier_mail, barrier.timeout);
  const auto started = Clock::now();
  std::vector<int> missing;
  while (!(missing = letters.missing()).empty() || !letters.all_sent()) {
    const auto waited = Clock::now() - started;
    if (waited >= barrier.timeout) break;
    if (waited < kYieldFor)
      sched_yield();
    else
      std::this_thread::sleep_for(kNap);
  }
  if (!missing.empty()) {
    const std::string text = fmt::format("monitored_barrier #{}: {} of {} did not arrive within {} s of rank {}",
                                         sequence, name_ranks(missing), place.world_size,
                                         static_cast<double>(barrier.timeout.count()) / 1000, place.rank);
    cpu.abort(text);
    throw TimeoutError("{}", text);
  }
  for (int peer = 0; peer < place.world_size; ++peer) {
    const std::uint64_t theirs = barrier_mail[static_cast<std::size_t>(peer)];
    if (peer == place.rank || theirs == sequence) continue;
    const std::string text = fmt::format(
        "rank {} is in monitored_barrier #{}, rank {} in monitored_barrier #{}. All ranks must make the same calls "
        "in the same order.",
        place.rank, sequence, peer, theirs);
    cpu.abort(text);
    throw MismatchError("{}", text);
  }
}

void ProcessGroup::monitored_barrier(std::chrono::milliseconds timeout, const CallOptions& options) {
  CallOptions call = options;
  call.device = DeviceKind::kCpu;
  if (timeout.count() != 0) call.timeout = timeout;
  if (call.purpose.name == nullptr) call.purpose.name = "monitored";
  const Message letter{&call, 1, DType::kInt64, 0, 0};
  if (world_size() > 1)
    check_capabilities(letter, false, impl_->capabilities[static_cast<std::size_t>(DeviceKind::kCpu)],
                       backend(DeviceKind::kCpu).name());
  const Operation barrier = impl_->number(OperationKind::kBarrier, {}, call, FlightRecorder::By::kCaller);
  impl_->next_pass = barrier.pass;  // the barrier's messages do not compare it
  try {
    impl_->meet_all(barrier);
  } catch (...) {
    flight::note_failed(barrier.flight);
    throw;
  }
  flight::note_finished(barrier.flight);
}

}  // namespace lockstep
