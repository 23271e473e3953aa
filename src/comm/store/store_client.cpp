#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "src/comm/net/interface.h"
#include "src/comm/net/peer_owner.h"
#include "src/comm/net/socket.h"
#include "src/comm/net/wait_notice.h"
#include "src/comm/store/store_protocol.h"
#include "src/core/process/process_fd.h"

namespace lockstep {

namespace protocol = store_protocol;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLongestWait = std::chrono::hours(24 * 30);
constexpr auto kAbandonTime = std::chrono::seconds(2);
// For a server that is alive but busy, in addition to the timeout of a get().
constexpr auto kAnswerTime = std::chrono::seconds(30);

template <typename T> std::span<std::byte> bytes_of(T& value) { return std::as_writable_bytes(std::span(&value, 1)); }

class TcpStore : public Store {
 public:
  TcpStore(Fd fd, std::string address) : fd_(std::move(fd)), address_(std::move(address)) {}

  void set(std::string_view key, std::string_view value) override {
    call(protocol::Request::kSet, key, value, milliseconds(0));
  }

  std::string get(std::string_view key, milliseconds timeout) override {
    return call(protocol::Request::kGet, key, "", timeout);
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    const std::string sum =
        call(protocol::Request::kAdd, key, {reinterpret_cast<const char*>(&amount), sizeof amount}, milliseconds(0));
    std::int64_t number = 0;
    if (sum.size() != sizeof number)
      throw RendezvousError("store at {}: got a counter of {} bytes for '{}'", address_, sum.size(), key);
    std::memcpy(&number, sum.data(), sizeof number);
    return number;
  }

  std::string set_if_absent(std::string_view key, std::string_view value) override {
    return call(protocol::Request::kSetIfAbsent, key, value, milliseconds(0));
  }

  void erase_below(std::string_view prefix) override {
    call(protocol::Request::kEraseBelow, prefix, "", milliseconds(0));
  }
  std::string claim(std::string_view key, std::string_view value) override {
    return call(protocol::Request::kClaim, key, value, milliseconds(0));
  }
  void keep(std::string_view key) override { call(protocol::Request::kKeep, key, "", milliseconds(0)); }
  void abandon(std::string_view key, std::string_view reason) override {
    call(protocol::Request::kAbandon, key, reason, milliseconds(0), kAbandonTime);
  }
  std::string get_while(std::string_view claims, std::string_view key, milliseconds timeout) override {
    return call(protocol::Request::kGet, key, claims, timeout);
  }
  void check_claims(std::string_view claims, milliseconds timeout) override {
    call(protocol::Request::kCheckClaims, claims, "", milliseconds(0), timeout);
  }

 private:
  std::string call(protocol::Request request, std::string_view key, std::string_view value, milliseconds timeout,
                   milliseconds answer_time = kAnswerTime) {
    if (key.empty() || key.size() > protocol::kMaxKeyBytes || value.size() > protocol::kMaxValueBytes)
      throw InvalidArgument("store: a key of {} bytes (1 to {}) with a value of {} bytes (at most {})", key.size(),
                            protocol::kMaxKeyBytes, value.size(), protocol::kMaxValueBytes);
    timeout = std::clamp(timeout, milliseconds(0), kLongestWait);
    const std::lock_guard lock(mutex_);
    if (!fd_) throw RendezvousError("store at {}: '{}' was not requested: {}", address_, key, over_);
    const Deadline deadline = Clock::now() + timeout + answer_time;
    const protocol::RequestHeader header{request, static_cast<std::uint32_t>(key.size()),
                                         static_cast<std::uint32_t>(value.size()),
                                         static_cast<std::uint32_t>(timeout.count())};
    std::string message(reinterpret_cast<const char*>(&header), sizeof header);
    message.append(key).append(value);
    must(send_all(fd_.get(), std::as_bytes(std::span(message)), deadline), key);
    protocol::ReplyHeader reply;
    must(receive_all(fd_.get(), bytes_of(reply), deadline), key);
    if (reply.value_bytes > protocol::kMaxValueBytes) {
      end("abandoned earlier, when its answer was too long");
      throw RendezvousError("store at {}: {} bytes announced for '{}'", address_, reply.value_bytes, key);
    }
    std::string answer(reply.value_bytes, '\0');
    must(receive_all(fd_.get(), std::as_writable_bytes(std::span(answer)), deadline), key);
    if (reply.reply == protocol::Reply::kTimeout)
      throw TimeoutError("store at {}: no process set '{}' within {} ms", address_, key, timeout.count());
    if (reply.reply == protocol::Reply::kAbandoned) throw ClaimAbandoned("{}", answer);
    if (reply.reply != protocol::Reply::kOk)
      throw RendezvousError("store at {} refused '{}': {}", address_, key, answer);
    return answer;
  }

  // After a failure the connection is out of step for good: a late reply would be taken for the next call's.
  void must(IoResult result, std::string_view key) {
    if (result == IoResult::kDone) return;
    if (result == IoResult::kTimeout) {
      end("abandoned earlier, when it did not answer");
      throw RendezvousError("store at {}: no answer about '{}'", address_, key);
    }
    end(fmt::format(
        "the connection was closed during the request for '{}': the process that hosts the store, rank 0 or "
        "lockrun, has ended",
        key));
    throw RendezvousError("store at {}: {}", address_, over_);
  }

  void end(std::string why) {
    fd_.reset();
    over_ = std::move(why);
  }

  std::mutex mutex_;
  ProcessFd fd_;
  std::string over_;  // why the connection has ended
  const std::string address_;
};

class ScopedStore : public Store {
 public:
  ScopedStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void set(std::string_view key, std::string_view value) override { store_->set(full(key), value); }
  std::string get(std::string_view key, milliseconds timeout) override { return store_->get(full(key), timeout); }
  std::int64_t add(std::string_view key, std::int64_t amount) override { return store_->add(full(key), amount); }
  std::string set_if_absent(std::string_view key, std::string_view value) override {
    return store_->set_if_absent(full(key), value);
  }
  void erase_below(std::string_view prefix) override { store_->erase_below(full(prefix)); }
  std::string claim(std::string_view key, std::string_view value) override { return store_->claim(full(key), value); }
  void keep(std::string_view key) override { store_->keep(full(key)); }
  void abandon(std::string_view key, std::string_view reason) override { store_->abandon(full(key), reason); }
  std::string get_while(std::string_view claims, std::string_view key, milliseconds timeout) override {
    return store_->get_while(full(claims), full(key), timeout);
  }
  void check_claims(std::string_view claims, milliseconds timeout) override {
    store_->check_claims(full(claims), timeout);
  }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
};

enum class Handshake { kDone, kSilent, kBroken, kTokenRefused };

Handshake shake_hands(int fd, std::string_view token, Deadline deadline) {
  protocol::Hello hello;
  const IoResult greeted = receive_all(fd, bytes_of(hello), deadline);
  if (greeted == IoResult::kTimeout) return Handshake::kSilent;
  if (greeted != IoResult::kDone || hello.magic != protocol::kMagic) return Handshake::kBroken;
  ProofExchange exchange(token, Role::kStoreClient);
  exchange.note_peer(hello.server_nonce);
  protocol::ClientProof client{protocol::kMagic, exchange.nonce(), exchange.proof()};
  protocol::ServerProof server;
  if (send_all(fd, bytes_of(client), deadline) != IoResult::kDone ||
      receive_all(fd, bytes_of(server), deadline) != IoResult::kDone)
    return Handshake::kBroken;
  const bool proven = server.accepted == 1 && exchange.accepts(server.proof) && !is_excluded(token, fd);
  return proven ? Handshake::kDone : Handshake::kTokenRefused;
}

// If the loopback interface of a network namespace is down, there is no use in waiting.
void check_that_machine_reaches_itself(const Endpoint& endpoint) {
  if (!is_loopback(endpoint.host)) return;
  try {
    address_towards(endpoint.host == "localhost" ? "127.0.0.1" : endpoint.host, endpoint.port,
                    Clock::now() + kAnswerTime);
  } catch (const RendezvousError& error) {
    throw RendezvousError(
        "store at {}: this machine does not reach itself there: is its loopback interface down? `ip link set lo up` "
        "brings it up ({})",
        endpoint.text(), error.what());
  }
}

}  // namespace

std::shared_ptr<Store> connect_store(const Endpoint& endpoint, std::string_view token, milliseconds timeout) {
  check_that_machine_reaches_itself(endpoint);
  timeout = std::clamp(timeout, milliseconds(0), kLongestWait);
  const Deadline deadline = Clock::now() + timeout;
  std::string why;
  WaitNotice notice;
  for (auto pause = milliseconds(5);; pause = std::min(pause * 2, milliseconds(500))) {
    if (Fd fd = try_connect_tcp(endpoint.host, endpoint.port, deadline, why)) {
      switch (shake_hands(fd.get(), token, std::min(deadline, Clock::now() + std::chrono::seconds(15)))) {
        case Handshake::kDone: return std::make_shared<TcpStore>(std::move(fd), endpoint.text());
        case Handshake::kTokenRefused:
          throw RendezvousError(
              "store at {}: the job's token was refused: LOCKSTEP_TOKEN (or LOCKSTEP_TOKEN_FILE) differs between this "
              "process and the store's, or that is another job's store{}",
              endpoint.text(), token.empty() ? "; without a token only processes of one user meet" : "");
        case Handshake::kSilent:
          why =
              "a process listens there and does not answer: it is stopped or busy, or has too many open files (ulimit "
              "-n)";
          break;
        case Handshake::kBroken: why = "the process that answers there is not a Lockstep store";
      }
    }
    if (Clock::now() + pause >= deadline)
      throw RendezvousError(
          "store at {}: no answer within {} s ({}): is rank 0 running, and is this its machine and port?",
          endpoint.text(), static_cast<double>(timeout.count()) / 1000, why.empty() ? "no time was given" : why);
    notice.look(
        [&] { return fmt::format("the store at {}, which rank 0 or lockrun serves ({})", endpoint.text(), why); });
    std::this_thread::sleep_for(pause);
  }
}

std::shared_ptr<Store> scoped(std::shared_ptr<Store> store, std::string prefix) {
  return std::make_shared<ScopedStore>(std::move(store), std::move(prefix));
}

}  // namespace lockstep
