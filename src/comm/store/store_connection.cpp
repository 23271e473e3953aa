#include "src/comm/store/store_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace lockstep {

namespace protocol = store_protocol;

namespace {

constexpr std::size_t kOwnInput = 4096;           // that a connection may hold in addition to the budget
constexpr std::size_t kReadAtOnce = 1024 * 1024;  // so that no client delays the others

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

void StoreConnection::drop_input() {
  budget_.give_back(std::exchange(budgeted_, 0));
  if (in_.capacity() > kOwnInput)
    in_ = {};
  else
    in_.clear();
}

// Reads available bytes, up to a total of `limit`.
StoreConnection::State StoreConnection::receive_some(std::size_t limit) {
  while (in_.size() < limit) {
    std::byte small[kOwnInput];
    const std::size_t before = in_.size(), room = limit - before;
    const bool direct = budgeted_ != 0;
    const std::size_t asked = direct ? room : std::min(room, sizeof small);
    if (direct) in_.resize(limit);
    const ssize_t got = recv(fd_.get(), direct ? in_.data() + before : small, asked, 0);
    if (direct) in_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0) return would_block() ? State::kOpen : State::kClosed;
    if (got == 0) return State::kClosed;
    if (!direct) in_.insert(in_.end(), small, small + got);
    if (static_cast<std::size_t>(got) < asked) break;  // that was all; poll reports when there is more
  }
  return State::kOpen;
}

StoreConnection::State StoreConnection::receive_proof(std::optional<protocol::ClientProof>& proof) {
  if (wants_to_send() && close_when_sent) return State::kClosed;
  const State state = receive_some(sizeof(protocol::ClientProof));
  if (state != State::kOpen || in_.size() < sizeof(protocol::ClientProof)) return state;
  std::memcpy(&proof.emplace(), in_.data(), sizeof(protocol::ClientProof));
  drop_input();
  return State::kOpen;
}

// How much of a request may be read: all of it, once there is room.
StoreConnection::State StoreConnection::make_room(const protocol::RequestHeader& header, std::size_t& wanted) {
  if (header.key_bytes == 0 || header.key_bytes > protocol::kMaxKeyBytes ||
      header.value_bytes > protocol::kMaxValueBytes)
    return State::kClosed;
  wanted = sizeof header + header.key_bytes + header.value_bytes;
  if (wanted <= kOwnInput || budgeted_ != 0) return State::kOpen;
  if (!budget_.take(wanted)) return State::kStuck;
  budgeted_ = wanted;
  in_.reserve(wanted);
  return State::kOpen;
}

StoreConnection::State StoreConnection::receive(std::optional<Request>& request) {
  if (!awaited.empty() || wants_to_send()) {  // it may close its sending side, but must not send
    char byte;
    const ssize_t got = recv(fd_.get(), &byte, 1, MSG_PEEK);
    return got < 0 && would_block() ? State::kOpen : State::kClosed;
  }
  protocol::RequestHeader header;
  std::size_t wanted = sizeof header;
  if (in_.size() < sizeof header) {
    const State state = receive_some(kOwnInput);
    if (in_.size() < sizeof header) return state;
  }
  std::memcpy(&header, in_.data(), sizeof header);
  if (const State state = make_room(header, wanted); state != State::kOpen) return state;
  if (in_.size() < wanted) {
    const State state = receive_some(std::min(wanted, in_.size() + kReadAtOnce));
    if (state == State::kClosed || in_.size() < wanted) return state;
  }
  if (in_.size() > wanted) return State::kClosed;
  const char* text = reinterpret_cast<const char*>(in_.data()) + sizeof header;
  request =
      Request{header, std::string(text, header.key_bytes), std::string(text + header.key_bytes, header.value_bytes)};
  drop_input();
  return State::kOpen;
}

void StoreConnection::reply(protocol::Reply kind, StoreTable::Value value) {
  append(protocol::ReplyHeader{kind, static_cast<std::uint32_t>(value ? value->size() : 0)});
  value_ = std::move(value);
}

StoreConnection::State StoreConnection::flush() {
  while (wants_to_send()) {
    iovec parts[2] = {};
    std::size_t used = 0;
    if (sent_ < out_.size()) parts[used++] = {out_.data() + sent_, out_.size() - sent_};
    const std::size_t of_value = sent_ < out_.size() ? 0 : sent_ - out_.size();
    if (value_ && of_value < value_->size())
      parts[used++] = {const_cast<char*>(value_->data()) + of_value, value_->size() - of_value};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = used;
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) return would_block() ? State::kOpen : State::kClosed;
    sent_ += static_cast<std::size_t>(sent);
  }
  out_.clear();
  value_.reset();
  sent_ = 0;
  return close_when_sent ? State::kClosed : State::kOpen;
}

}  // namespace lockstep
