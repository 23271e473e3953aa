// Messages between ranks: send and receive with tags, over byte streams.
//
// A message is a header and its data. When a header arrives, the oldest matching receive (sender, tag) takes the data
// directly into its buffer; without a matching receive the data is stored until there is one. So a receiver that waits
// for one message lets all others pass, and no order of receives can block a sender forever. A waiting thread moves all
// data that can be moved; without one, nothing moves.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/place.h"
#include "src/comm/call/byte_channels.h"

namespace lockstep {

struct MessageHeader {
  enum Kind : std::uint32_t { kMessage = 0x6d736731, kGoodbye = 0x62796531 };
  std::uint32_t kind = kMessage;
  std::int32_t tag = 0;
  std::uint64_t count = 0;
  std::uint32_t dtype = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(MessageHeader) == 24);

// Any thread may call any function.
class PointToPoint : public CompletionQueue {
 public:
  // The caller owns `channels`, and calls leave() before it destroys them.
  PointToPoint(const Place& place, ByteChannels& channels);

  static Work send(const std::shared_ptr<PointToPoint>& self, const Message& message);
  static Work receive(const std::shared_ptr<PointToPoint>& self, const Message& message);

  bool done(std::uint64_t ticket) override;
  void wait(std::uint64_t ticket) override;
  void stream_wait(std::uint64_t ticket, Stream&) override { wait(ticket); }
  std::optional<std::size_t> wait_any(std::span<const std::uint64_t> tickets,
                                      std::chrono::steady_clock::time_point until) override;

  // Sends goodbye to all peers, except those to which a message is only half sent. Afterwards the channels are not
  // used, and incomplete messages throw PeerLost.
  void leave() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Outgoing {
    MessageHeader header;
    const std::byte* data;
    std::size_t bytes;     // of the data
    std::size_t done = 0;  // of header and data
    std::uint64_t ticket;
  };
  struct Receive {
    Message message;
    std::uint64_t ticket;
  };
  struct Unexpected {
    int from;
    MessageHeader header;
    std::vector<std::byte> data;
    bool complete = false;
    std::uint64_t taker = 0;  // ticket of a receive that was called while the data was under way
    Message wanted = {};
  };
  struct Arriving {  // from one peer
    MessageHeader header;
    std::size_t header_done = 0;
    std::byte* to = nullptr;
    std::size_t bytes = 0, done = 0;
    std::uint64_t ticket = 0;  // of the receive that takes it; 0: stored
    Unexpected* kept = nullptr;
  };
  // An incomplete message.
  struct Pending {
    Message message;
    bool is_receive;
    std::string describe() const { return is_receive ? describe_receive(message) : describe_send(message); }
  };

  std::uint64_t add(const Message& message, bool is_receive);
  void complete(std::uint64_t ticket);
  void fail(std::uint64_t ticket);
  void start_receive(const Message& message, std::uint64_t ticket);
  using Tickets = std::span<const std::uint64_t>;
  // Both stop reading once one of `awaited` is complete: a receive for the data that follows may be called before it
  // must be stored.
  bool move_everything(Tickets awaited = {});
  bool pull(int peer, Tickets awaited);
  bool push(int peer);
  void message_begins(int from);
  void message_ends(int from);
  void keep(int from, const MessageHeader& header, std::size_t bytes);
  void wake_waiters();
  void deliver(Unexpected& kept, const Message& to, std::uint64_t ticket);
  void check_match(const MessageHeader& header, int from, const Message& wanted);
  void throw_if_hopeless(std::uint64_t ticket);
  void report_timeout(const Pending& waiting, Clock::time_point started);  // throws
  void sleep(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);
  template <typename Wait> void or_fail(Tickets tickets, Wait&& wait);
  void wait_locked(std::unique_lock<std::mutex>& lock, std::uint64_t ticket);
  std::optional<std::size_t> wait_any_locked(std::unique_lock<std::mutex>& lock, Tickets tickets,
                                             Clock::time_point until);
  std::optional<std::size_t> first_complete(Tickets tickets) const;
  void send_to_self(const Outgoing& message);
  bool is_pending(std::uint64_t ticket) const { return pending_.count(ticket) != 0; }
  void throw_if_failed() const;

  const Place place_;
  ByteChannels* channels_;
  bool left_ = false;  // if true, the channels are not used
  std::mutex mutex_;   // guards all members
  std::condition_variable changed_;
  bool somebody_waits_ = false;  // in channels_->wait(), without the mutex
  std::uint64_t last_ticket_ = 0;
  std::map<std::uint64_t, Pending> pending_;
  std::vector<std::deque<Outgoing>> outgoing_;  // by peer
  std::vector<Arriving> arriving_;              // by peer
  int next_ = 0;                                // the peer to read from next
  std::vector<bool> said_goodbye_;              // by peer
  std::list<Receive> receives_;                 // unmatched, in the order of the calls
  std::list<Unexpected> unexpected_;            // in the order of arrival
  std::vector<bool> writing_;
  std::exception_ptr failure_;
};

}  // namespace lockstep
