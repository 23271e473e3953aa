#include "src/comm/call/point_to_point.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "lockstep/core/error.h"
#include "src/comm/call/group_gone.h"
#include "src/comm/flight/flight_recorder.h"

namespace lockstep {

namespace {

constexpr std::size_t kPullAtOnce = 1024 * 1024;

MessageHeader header_of(const Message& message) {
  MessageHeader header;
  header.tag = message.tag;
  header.count = message.count;
  header.dtype = static_cast<std::uint32_t>(message.dtype);
  return header;
}

bool matches(const Message& wanted, int from, std::int32_t tag) {
  return (wanted.peer == kAnyRank || wanted.peer == from) && wanted.tag == tag;
}

}  // namespace

PointToPoint::PointToPoint(const Place& place, ByteChannels& channels)
    : place_(place),
      channels_(&channels),
      outgoing_(static_cast<std::size_t>(place.world_size)),
      arriving_(outgoing_.size()),
      said_goodbye_(outgoing_.size()),
      writing_(outgoing_.size()) {}

void PointToPoint::throw_if_failed() const {
  if (failure_) std::rethrow_exception(failure_);
  if (left_) throw group_gone();
}

void PointToPoint::complete(std::uint64_t ticket) {
  const auto found = pending_.find(ticket);
  if (found == pending_.end()) return;
  flight::note_message_finished(found->second.message.flight);
  pending_.erase(found);
}

// Stores the exception that is being handled, for all waiting threads and for the flight record.
void PointToPoint::fail(std::uint64_t ticket) {
  failure_ = std::current_exception();
  if (const auto found = pending_.find(ticket); found != pending_.end())
    flight::note_failed(found->second.message.flight);
}

std::uint64_t PointToPoint::add(const Message& message, bool is_receive) {
  pending_[++last_ticket_] = {message, is_receive};
  return last_ticket_;
}

Work PointToPoint::send(const std::shared_ptr<PointToPoint>& self, const Message& message) {
  PointToPoint& p2p = *self;
  const std::lock_guard lock(p2p.mutex_);
  p2p.throw_if_failed();
  p2p.channels_->throw_if_over([&] { return describe_send(message); });
  const std::uint64_t ticket = p2p.add(message, false);
  const Outgoing outgoing{header_of(message), static_cast<const std::byte*>(message.data), message.bytes(), 0, ticket};
  if (message.peer == p2p.place_.rank) {
    p2p.send_to_self(outgoing);
  } else {
    p2p.outgoing_[static_cast<std::size_t>(message.peer)].push_back(outgoing);
    p2p.push(message.peer);
  }
  p2p.wake_waiters();  // they do not know of this message yet
  return Work(self, ticket);
}

Work PointToPoint::receive(const std::shared_ptr<PointToPoint>& self, const Message& message) {
  PointToPoint& p2p = *self;
  const std::lock_guard lock(p2p.mutex_);
  p2p.throw_if_failed();
  p2p.channels_->throw_if_over([&] { return describe_receive(message); });
  const std::uint64_t ticket = p2p.add(message, true);
  p2p.start_receive(message, ticket);
  return Work(self, ticket);
}

void PointToPoint::start_receive(const Message& message, std::uint64_t ticket) {
  for (auto kept = unexpected_.begin(); kept != unexpected_.end(); ++kept) {
    if (kept->taker != 0 || !matches(message, kept->from, kept->header.tag)) continue;
    check_match(kept->header, kept->from, message);
    if (kept->complete) {
      deliver(*kept, message, ticket);
      unexpected_.erase(kept);
    } else {
      kept->taker = ticket;
      kept->wanted = message;
    }
    return;
  }
  receives_.push_back({message, ticket});
}

void PointToPoint::deliver(Unexpected& kept, const Message& to, std::uint64_t ticket) {
  if (!kept.data.empty()) std::memcpy(to.data, kept.data.data(), kept.data.size());
  if (to.sender != nullptr) *to.sender = kept.from;
  complete(ticket);
}

// A message from a rank to itself is received at once, or stored.
void PointToPoint::send_to_self(const Outgoing& message) {
  const auto receive = std::find_if(receives_.begin(), receives_.end(), [&](const Receive& each) {
    return matches(each.message, place_.rank, message.header.tag);
  });
  unexpected_.push_back(
      {place_.rank, message.header, std::vector<std::byte>(message.data, message.data + message.bytes), true});
  complete(message.ticket);
  if (receive == receives_.end()) return;
  check_match(message.header, place_.rank, receive->message);
  deliver(unexpected_.back(), receive->message, receive->ticket);
  unexpected_.pop_back();
  receives_.erase(receive);
}

// Wakes the waiting threads and the thread that sleeps in the channels.
void PointToPoint::wake_waiters() {
  if (!somebody_waits_) return;
  channels_->interrupt();
  changed_.notify_all();
}

void PointToPoint::check_match(const MessageHeader& header, int from, const Message& wanted) {
  if (header.count == wanted.count && header.dtype == static_cast<std::uint32_t>(wanted.dtype)) return;
  const std::string text =
      fmt::format("rank {} sent {} x {} with tag {} to rank {}, which receives {} x {}; type and count must agree",
                  from, name_of(static_cast<DType>(header.dtype)), header.count, header.tag, place_.rank,
                  name_of(wanted.dtype), wanted.count);
  channels_->end(GroupErrorKind::kMismatch, text, describe_receive(wanted));
}

bool PointToPoint::push(int peer) {
  auto& queue = outgoing_[static_cast<std::size_t>(peer)];
  bool moved = false;
  while (!queue.empty()) {
    Outgoing& message = queue.front();
    constexpr std::size_t kHeader = sizeof(MessageHeader);
    const bool in_header = message.done < kHeader;
    const auto* from = in_header ? reinterpret_cast<const std::byte*>(&message.header) + message.done
                                 : message.data + (message.done - kHeader);
    const std::size_t left = in_header ? kHeader - message.done : kHeader + message.bytes - message.done;
    const std::size_t written = left == 0 ? 0 : channels_->write(peer, from, left);
    message.done += written;
    moved |= written != 0;
    if (message.done == kHeader + message.bytes) {
      complete(message.ticket);
      queue.pop_front();
    } else if (written == 0) {
      break;
    }
  }
  return moved;
}

bool PointToPoint::pull(int peer, Tickets awaited) {
  Arriving& from = arriving_[static_cast<std::size_t>(peer)];
  bool moved = false;
  std::size_t budget = kPullAtOnce;  // a peer that never stops must not delay the others, or the deadline
  while (!said_goodbye_[static_cast<std::size_t>(peer)] && budget > 0) {
    if (from.header_done < sizeof from.header) {
      auto* const header = reinterpret_cast<std::byte*>(&from.header);
      const std::size_t read = channels_->read(peer, header + from.header_done, sizeof from.header - from.header_done);
      if (read == 0) break;
      moved = true;
      budget -= std::min(budget, read);
      from.header_done += read;
      if (from.header_done == sizeof from.header) message_begins(peer);
    } else {
      const std::size_t read = channels_->read(peer, from.to + from.done, std::min(budget, from.bytes - from.done));
      if (read == 0) break;
      budget -= read;
      moved = true;
      from.done += read;
      if (from.done == from.bytes) message_ends(peer);
    }
    if (from.header_done == 0 && first_complete(awaited)) break;
  }
  return moved;
}

void PointToPoint::message_begins(int from) {
  Arriving& arriving = arriving_[static_cast<std::size_t>(from)];
  const MessageHeader& header = arriving.header;
  if (header.kind == MessageHeader::kGoodbye) {
    said_goodbye_[static_cast<std::size_t>(from)] = true;
    channels_->close(from);
    return;
  }
  LOCKSTEP_CHECK(header.kind == MessageHeader::kMessage && size_of(static_cast<DType>(header.dtype)) != 0,
                 "the stream of messages from rank {} is damaged", from);
  arriving.bytes = header.count * size_of(static_cast<DType>(header.dtype));
  const auto receive = std::find_if(receives_.begin(), receives_.end(),
                                    [&](const Receive& each) { return matches(each.message, from, header.tag); });
  if (receive != receives_.end()) {
    check_match(header, from, receive->message);
    arriving.to = static_cast<std::byte*>(receive->message.data);
    arriving.ticket = receive->ticket;
    if (receive->message.sender != nullptr) *receive->message.sender = from;
    receives_.erase(receive);
  } else {
    keep(from, header, arriving.bytes);
    arriving.kept = &unexpected_.back();
    arriving.to = arriving.kept->data.data();
  }
  if (arriving.bytes == 0) message_ends(from);
}

void PointToPoint::keep(int from, const MessageHeader& header, std::size_t bytes) {
  try {
    unexpected_.push_back({from, header, std::vector<std::byte>(bytes)});
  } catch (const std::bad_alloc&) {
    const std::string text =
        fmt::format("rank {} has no memory left for {} bytes that rank {} sent with tag {} and no call received yet",
                    place_.rank, bytes, from, header.tag);
    channels_->end(GroupErrorKind::kPeerLost, text, fmt::format("rank {}: messages from rank {}", place_.rank, from));
  }
}

void PointToPoint::message_ends(int from) {
  Arriving& arriving = arriving_[static_cast<std::size_t>(from)];
  if (arriving.kept == nullptr) {
    complete(arriving.ticket);
  } else {
    Unexpected& kept = *arriving.kept;
    kept.complete = true;
    if (kept.taker != 0) {
      deliver(kept, kept.wanted, kept.taker);
      unexpected_.remove_if([&](const Unexpected& each) { return &each == &kept; });
    }
  }
  arriving = Arriving{};
}

// Reading begins with the rank after the last one that was read, so that a rank that sends without pause cannot starve
// the others.
bool PointToPoint::move_everything(Tickets awaited) {
  bool moved = false;
  for (int read = 0; read < place_.world_size && !first_complete(awaited); ++read) {
    if (next_ != place_.rank) moved |= pull(next_, awaited);
    next_ = (next_ + 1) % place_.world_size;
  }
  for (int peer = 0; peer < place_.world_size; ++peer)
    if (peer != place_.rank) moved |= push(peer);
  return moved;
}

std::optional<std::size_t> PointToPoint::first_complete(Tickets tickets) const {
  for (std::size_t i = 0; i < tickets.size(); ++i)
    if (!is_pending(tickets[i])) return i;
  return std::nullopt;
}

// Ends the group if the peer has exited, so that this wait is hopeless. The check for its exit comes before the last
// look for its messages, so that none is lost.
void PointToPoint::throw_if_hopeless(std::uint64_t ticket) {
  if (!is_pending(ticket)) return;
  const Pending waiting = pending_.at(ticket);
  const int wanted = waiting.message.peer;
  if (wanted == place_.rank || place_.world_size == 1) return;
  for (int peer = 0; peer < place_.world_size; ++peer) {
    if (peer == place_.rank || (wanted != kAnyRank && peer != wanted)) continue;
    if (!said_goodbye_[static_cast<std::size_t>(peer)] && !channels_->has_gone(peer)) return;
  }
  if (move_everything()) return wake_waiters();
  const std::string who = wanted == kAnyRank ? "every other rank" : channels_->name_of_rank(wanted);
  channels_->end(GroupErrorKind::kPeerLost, who + " has left the group", waiting.describe());
}

void PointToPoint::report_timeout(const Pending& waiting, Clock::time_point started) {
  const std::chrono::duration<double> waited = Clock::now() - started;
  const int peer = waiting.message.peer;
  const std::string who = peer == kAnyRank || peer == place_.rank ? "a message" : channels_->name_of_rank(peer);
  channels_->end(GroupErrorKind::kTimeout,
                 fmt::format("rank {} waited {:.1f} s in {} for {}, which did not arrive", place_.rank, waited.count(),
                             waiting.describe(), who),
                 waiting.describe());
}

bool PointToPoint::done(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  if (!is_pending(ticket)) return true;
  throw_if_failed();
  try {
    if (move_everything()) wake_waiters();  // the message that they wait for may have arrived
    if (!is_pending(ticket)) return true;
    channels_->throw_if_over([&] { return pending_.at(ticket).describe(); });
    throw_if_hopeless(ticket);
  } catch (...) {
    fail(ticket);
    wake_waiters();
    throw;
  }
  return !is_pending(ticket);
}

// A failure of one wait fails all messages; the threads that wait for others are woken.
template <typename Wait> void PointToPoint::or_fail(Tickets tickets, Wait&& wait) {
  try {
    wait();
  } catch (...) {
    if (!failure_ && !left_) fail(tickets.front());
    changed_.notify_all();
    throw;
  }
  changed_.notify_all();
}

void PointToPoint::wait(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  if (!is_pending(ticket)) return;
  throw_if_failed();
  or_fail(Tickets(&ticket, 1), [&] { wait_locked(lock, ticket); });
}

std::optional<std::size_t> PointToPoint::wait_any(Tickets tickets, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  std::optional<std::size_t> complete = first_complete(tickets);
  if (complete) return complete;
  throw_if_failed();
  or_fail(tickets, [&] { complete = wait_any_locked(lock, tickets, until); });
  return complete;
}

// The time for which this process was stopped does not count towards a deadline.
void PointToPoint::wait_locked(std::unique_lock<std::mutex>& lock, std::uint64_t ticket) {
  const Pending waiting = pending_.at(ticket);
  const auto started = Clock::now();
  const auto slept_before = channels_->slept();
  auto deadline = started + waiting.message.timeout;
  while (!wait_any_locked(lock, Tickets(&ticket, 1), deadline)) {
    const auto later = started + waiting.message.timeout + (channels_->slept() - slept_before);
    if (later <= deadline) report_timeout(waiting, started);
    deadline = later;
  }
}

std::optional<std::size_t> PointToPoint::wait_any_locked(std::unique_lock<std::mutex>& lock, Tickets tickets,
                                                         Clock::time_point until) {
  for (;;) {
    if (const auto complete = first_complete(tickets)) return complete;
    throw_if_failed();
    const bool in_time = Clock::now() < until;
    if (somebody_waits_ && in_time) {  // one thread moves the data of all
      changed_.wait_until(lock, until);
      continue;
    }
    const bool has_moved = move_everything(tickets);
    if (has_moved && in_time) continue;
    if (has_moved) wake_waiters();  // a thread sleeps for its message, and this one will not sleep in its place
    if (const auto complete = first_complete(tickets)) return complete;
    channels_->throw_if_over([&] { return pending_.at(tickets.front()).describe(); });
    for (const std::uint64_t ticket : tickets) throw_if_hopeless(ticket);
    if (const auto complete = first_complete(tickets)) return complete;
    if (!in_time) return std::nullopt;
    sleep(lock, until);
  }
}

void PointToPoint::sleep(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  for (std::size_t peer = 0; peer < outgoing_.size(); ++peer) writing_[peer] = !outgoing_[peer].empty();
  somebody_waits_ = true;
  lock.unlock();
  channels_->wait(writing_, deadline);
  lock.lock();
  somebody_waits_ = false;
  changed_.notify_all();
}

void PointToPoint::leave() noexcept {
  std::unique_lock lock(mutex_);
  if (std::exchange(left_, true)) return;
  channels_->interrupt();
  changed_.notify_all();
  changed_.wait(lock, [this] { return !somebody_waits_; });
  MessageHeader goodbye;
  goodbye.kind = MessageHeader::kGoodbye;
  for (int peer = 0; peer < place_.world_size; ++peer) {
    if (peer == place_.rank || failure_ || !outgoing_[static_cast<std::size_t>(peer)].empty()) continue;
    channels_->write_last(peer, reinterpret_cast<const std::byte*>(&goodbye), sizeof goodbye);
  }
}

}  // namespace lockstep
