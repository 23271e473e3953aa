#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/socket.h"
#include "src/comm/store_protocol.h"

namespace lockstep {

namespace protocol = store_protocol;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kHandshakeTime = std::chrono::seconds(10);  // a connection that has not proved itself by then is closed
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr std::size_t kMaxConnections = 4096;
constexpr std::size_t kMaxHalfOpen = 1024;  // the oldest goes when one more comes
constexpr int kReportedRefusals = 20;
constexpr std::size_t kMaxKeys = 100'000;
constexpr std::size_t kMaxStoredBytes = std::size_t{512} << 20;

// One client: bytes that came and were not understood yet, bytes that wait to leave.
struct Connection {
  Fd fd;
  std::vector<std::byte> in, out;
  std::size_t sent = 0;  // of out
  Nonce server_nonce{};
  bool proved = false;
  bool close_when_sent = false;
  Clock::time_point since = Clock::now();
  std::optional<std::string> awaited;  // a get() that waits for this key
  Clock::time_point give_up{};

  bool wants_to_send() const { return sent < out.size(); }
  template <typename T>
  void append(const T& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof value);
  }
};

}  // namespace

class StoreServer::Impl {
 public:
  explicit Impl(const StoreServerOptions& options) : token_(options.token) {
    if (options.listen_fd >= 0) {
      listener_ = Fd(options.listen_fd);
      fcntl(listener_.get(), F_SETFL, fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
    } else {
      listener_ = listen_tcp(options.host, options.port);
    }
    endpoint_ = local_endpoint(listener_.get());
    if (token_.empty() && !options.insecure && !is_loopback(endpoint_.host))
      throw RendezvousError(
          "store: refusing to serve {} without a token, anyone on the network could join the job: set LOCKSTEP_TOKEN or "
          "LOCKSTEP_TOKEN_FILE on every rank, or LOCKSTEP_INSECURE=1 on a network that you trust",
          endpoint_.text());
    wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    thread_ = std::thread([this] { serve(); });
  }

  ~Impl() {
    const std::uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof one) < 0) log::error("store: cannot wake the server thread: {}", std::strerror(errno));
    thread_.join();
  }

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  void serve() {
    std::vector<pollfd> polled;
    for (;;) {
      const short accepting = Clock::now() < accept_again_ ? 0 : POLLIN;
      polled.assign({{wake_.get(), POLLIN, 0}, {listener_.get(), accepting, 0}});
      for (const Connection& connection : connections_)
        polled.push_back({connection.fd.get(), static_cast<short>(connection.wants_to_send() ? POLLIN | POLLOUT : POLLIN), 0});
      if (poll(polled.data(), polled.size(), milliseconds_to_next_event()) < 0 && errno != EINTR) {
        log::error("store: poll failed: {}; the store stops", std::strerror(errno));
        return;
      }
      if (polled[0].revents != 0) return;
      auto entry = polled.begin() + 2;
      for (auto it = connections_.begin(); it != connections_.end(); ++entry) {
        const bool alive = entry->revents == 0 || handle(*it, entry->revents);
        it = alive ? std::next(it) : connections_.erase(it);
      }
      expire();
      if (polled[1].revents != 0) accept_all();
    }
  }

  int milliseconds_to_next_event() const {
    auto next = accept_again_ > Clock::now() ? accept_again_ : Clock::time_point::max();
    for (const Connection& connection : connections_) {
      if (!connection.proved) next = std::min(next, connection.since + kHandshakeTime);
      if (connection.awaited) next = std::min(next, connection.give_up);
    }
    return next == Clock::time_point::max() ? -1 : remaining_ms(next);
  }

  void accept_all() {
    for (;;) {
      Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd) {
        // Without descriptors or memory the listener stays readable: come back later instead of spinning.
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) accept_again_ = Clock::now() + kAcceptPause;
        return;
      }
      if (connections_.size() >= kMaxConnections) continue;  // closes it
      const auto is_half_open = [](const Connection& connection) { return !connection.proved; };
      if (static_cast<std::size_t>(std::count_if(connections_.begin(), connections_.end(), is_half_open)) >= kMaxHalfOpen)
        connections_.erase(std::find_if(connections_.begin(), connections_.end(), is_half_open));
      Connection& connection = connections_.emplace_back();
      connection.fd = std::move(fd);
      connection.server_nonce = make_nonce();
      connection.append(protocol::Hello{protocol::kMagic, connection.server_nonce});
      if (!flush(connection)) connections_.pop_back();
    }
  }

  // Ends handshakes that take too long and answers get()s whose time is over.
  void expire() {
    const auto now = Clock::now();
    for (auto it = connections_.begin(); it != connections_.end();) {
      bool alive = it->proved || now < it->since + kHandshakeTime;
      if (alive && it->awaited && now >= it->give_up) {
        it->awaited.reset();
        reply(*it, protocol::Reply::kTimeout, "");
        alive = flush(*it);
      }
      it = alive ? std::next(it) : connections_.erase(it);
    }
  }

  // False: the connection is to be closed.
  bool handle(Connection& connection, short events) {
    if ((events & (POLLERR | POLLNVAL)) != 0) return false;
    if ((events & (POLLIN | POLLHUP)) != 0 && !(receive(connection) && understand(connection))) return false;
    return flush(connection);
  }

  static bool receive(Connection& connection) {
    std::byte buffer[65536];
    for (int i = 0; i < 16; ++i) {  // no client keeps the others waiting
      const ssize_t got = recv(connection.fd.get(), buffer, sizeof buffer, 0);
      if (got == 0) return false;
      if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
      connection.in.insert(connection.in.end(), buffer, buffer + got);
      constexpr std::size_t kLargest = sizeof(protocol::RequestHeader) + protocol::kMaxKeyBytes + protocol::kMaxValueBytes;
      if (connection.in.size() > (connection.proved ? kLargest : sizeof(protocol::ClientProof))) return false;
    }
    return true;
  }

  static bool flush(Connection& connection) {
    while (connection.wants_to_send()) {
      const ssize_t sent =
          send(connection.fd.get(), connection.out.data() + connection.sent, connection.out.size() - connection.sent, MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
      connection.sent += static_cast<std::size_t>(sent);
    }
    connection.out.clear();
    connection.sent = 0;
    return !connection.close_when_sent;
  }

  bool understand(Connection& connection) {
    if (!connection.proved) return check_proof(connection);
    if (connection.in.size() < sizeof(protocol::RequestHeader)) return true;
    if (connection.awaited || connection.wants_to_send()) return false;  // requests and replies take turns
    protocol::RequestHeader header;
    std::memcpy(&header, connection.in.data(), sizeof header);
    if (header.key_bytes == 0 || header.key_bytes > protocol::kMaxKeyBytes || header.value_bytes > protocol::kMaxValueBytes) return false;
    const std::size_t total = sizeof header + header.key_bytes + header.value_bytes;
    if (connection.in.size() < total) return true;
    if (connection.in.size() > total) return false;
    const char* text = reinterpret_cast<const char*>(connection.in.data()) + sizeof header;
    const std::string key(text, header.key_bytes);
    std::string value(text + header.key_bytes, header.value_bytes);
    connection.in.clear();
    return answer(connection, header, key, std::move(value));
  }

  bool check_proof(Connection& connection) {
    if (connection.in.size() < sizeof(protocol::ClientProof)) return true;
    protocol::ClientProof client;
    std::memcpy(&client, connection.in.data(), sizeof client);
    connection.in.clear();
    if (client.magic != protocol::kMagic) return false;
    connection.proved = is_proven(client.proof, token_, Role::kStoreClient, client.client_nonce, connection.server_nonce);
    protocol::ServerProof reply{connection.proved ? 1u : 0u, {}};
    if (connection.proved) {
      reply.proof = prove(token_, Role::kStoreServer, client.client_nonce, connection.server_nonce);
    } else {
      report_refusal(connection);
      connection.close_when_sent = true;
    }
    connection.append(reply);
    return true;
  }

  // A stranger who keeps trying must not fill the log.
  void report_refusal(const Connection& connection) {
    if (++refusals_ > kReportedRefusals) return;
    log::warn("store: a connection from {} does not know the job's token: refused{}", peer_endpoint(connection.fd.get()).text(),
              refusals_ == kReportedRefusals ? "; further ones are not reported" : "");
  }

  bool answer(Connection& connection, const protocol::RequestHeader& header, const std::string& key, std::string value) {
    switch (header.request) {
      case protocol::Request::kSet:
        store(connection, key, std::move(value), "");
        return true;
      case protocol::Request::kSetIfAbsent: {
        const auto found = values_.find(key);
        if (found != values_.end())
          reply(connection, protocol::Reply::kOk, found->second);
        else
          store(connection, key, value, value);
        return true;
      }
      case protocol::Request::kAdd: {
        std::int64_t amount = 0, sum = 0;
        const auto found = values_.find(key);
        const std::string before = found == values_.end() ? "" : found->second;
        if (value.size() != sizeof amount || (!before.empty() && before.size() != sizeof sum)) {
          reply(connection, protocol::Reply::kRefused, "the key holds no counter");
          return true;
        }
        std::memcpy(&amount, value.data(), sizeof amount);
        if (!before.empty()) std::memcpy(&sum, before.data(), sizeof sum);
        sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(amount));
        std::string bytes(reinterpret_cast<const char*>(&sum), sizeof sum);
        store(connection, key, bytes, bytes);
        return true;
      }
      case protocol::Request::kGet: {
        const auto found = values_.find(key);
        if (found != values_.end()) {
          reply(connection, protocol::Reply::kOk, found->second);
        } else {
          connection.awaited = key;
          connection.give_up = Clock::now() + std::chrono::milliseconds(header.timeout_ms);
        }
        return true;
      }
    }
    return false;  // a request that this version does not know
  }

  void store(Connection& connection, const std::string& key, std::string value, const std::string& answer) {
    const auto found = values_.find(key);
    const std::size_t others = stored_bytes_ - (found == values_.end() ? 0 : found->second.size());
    if ((found == values_.end() && values_.size() >= kMaxKeys) || others + value.size() > kMaxStoredBytes) {
      reply(connection, protocol::Reply::kRefused, fmt::format("the store is full: {} keys, {} bytes", values_.size(), stored_bytes_));
      return;
    }
    stored_bytes_ = others + value.size();
    const std::string& stored = values_[key] = std::move(value);
    reply(connection, protocol::Reply::kOk, answer);
    for (Connection& waiter : connections_)
      if (waiter.awaited == key) {
        waiter.awaited.reset();
        reply(waiter, protocol::Reply::kOk, stored);
        flush(waiter);  // a waiter that is gone is noticed by poll
      }
  }

  static void reply(Connection& connection, protocol::Reply reply, const std::string& value) {
    connection.append(protocol::ReplyHeader{reply, static_cast<std::uint32_t>(value.size())});
    const auto* bytes = reinterpret_cast<const std::byte*>(value.data());
    connection.out.insert(connection.out.end(), bytes, bytes + value.size());
  }

  const std::string token_;
  Fd listener_, wake_;
  Endpoint endpoint_;
  Clock::time_point accept_again_{};
  std::list<Connection> connections_;  // everything below belongs to the server's thread
  std::unordered_map<std::string, std::string> values_;
  std::size_t stored_bytes_ = 0;
  int refusals_ = 0;
  std::thread thread_;
};

StoreServer::StoreServer(const StoreServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
StoreServer::~StoreServer() = default;
Endpoint StoreServer::endpoint() const { return impl_->endpoint(); }

}  // namespace lockstep
