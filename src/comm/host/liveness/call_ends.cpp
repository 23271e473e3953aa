#include "src/comm/host/liveness/call_ends.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/comm/operation/mismatch.h"

namespace lockstep::host {

namespace {

using Clock = std::chrono::steady_clock;

// All connections of a dying process close at about the same time, but the failure detector's may be read last.
constexpr auto kCauseFollows = std::chrono::seconds(1);

}  // namespace

FrameHeader header_of(const Operation& operation) {
  FrameHeader header;
  header.signature = operation.signature;
  header.pass = operation.pass;
  const char* name = operation.purpose.name != nullptr ? operation.purpose.name : "";
  std::memcpy(header.purpose, name, std::min(std::strlen(name), sizeof(header.purpose) - 1));
  return header;
}

void send_goodbye(const std::vector<TcpPeer>& peers) noexcept {
  FrameHeader goodbye;
  goodbye.kind = FrameHeader::kGoodbye;
  for (const TcpPeer& peer : peers) {
    if (!peer.socket) continue;
    // The peer may have exited.
    [[maybe_unused]] const auto sent = send(peer.socket.get(), &goodbye, sizeof goodbye, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(peer.socket.get(), SHUT_WR);
  }
}

void CallEnds::begin(const Operation& operation) {
  operation_ = &operation;
  started_ = Clock::now();
  slept_before_ = detector_.slept();
}

TcpExchange::Events CallEnds::events() {
  return {
      .lost = [this](int peer) { end_cut(peer); },
      .left =
          [this](int peer) {
            end(GroupErrorKind::kPeerLost, detector_.name_of_rank(rank_of(peer)) + " has left the group");
          },
      .mismatch = [this](int peer, const FrameHeader& theirs) { end_mismatch(peer, theirs); },
      .late = [this](const std::vector<int>& peers, bool arrived) { end_late(peers, arrived); },
      .slept =
          [this] {
            const auto slept = detector_.slept();
            const auto more = slept - std::exchange(slept_before_, slept);
            started_ += more;  // the following blocks have a later deadline, too
            return more;
          },
  };
}

void CallEnds::end(GroupErrorKind kind, const std::string& text) const {
  detector_.declare(kind, text);
  detector_.throw_group_error(describe(operation_->signature, operation_->purpose));
}

// The peer died, left before it could send a goodbye here, or the group has ended and this rank is about to receive the
// reason.
void CallEnds::end_cut(int peer) const {
  const int rank = rank_of(peer);
  const auto until = Clock::now() + kCauseFollows;
  while (!detector_.await_over(std::chrono::milliseconds(10)) && !detector_.has_left(rank) && Clock::now() < until)
    continue;
  end(GroupErrorKind::kPeerLost,
      detector_.name_of_rank(rank) +
          (detector_.has_left(rank) ? " has left the group" : " closed its connection without a goodbye"));
}

void CallEnds::end_mismatch(int peer, const FrameHeader& theirs) const {
  const std::string name(theirs.purpose, strnlen(theirs.purpose, sizeof theirs.purpose));
  const Purpose purpose{name.empty() ? nullptr : name.c_str(), theirs.signature.purpose_index};
  end(GroupErrorKind::kMismatch,
      describe_mismatch({detector_.rank(), operation_->signature, operation_->purpose, operation_->pass},
                        {rank_of(peer), theirs.signature, purpose, theirs.pass}));
}

void CallEnds::end_late(const std::vector<int>& peers, bool arrived) const {
  std::vector<int> ranks;
  for (const int peer : peers) ranks.push_back(rank_of(peer));
  end(GroupErrorKind::kTimeout,
      detector_.describe_absence(*operation_, Clock::now() - started_, ranks, arrived ? "finish" : "arrive"));
}

}  // namespace lockstep::host
