#include "tests/network/stream_relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "src/comm/host/wire/tcp_mesh.h"
#include "src/comm/net/socket.h"

namespace lockstep::testing {

StreamRelay::StreamRelay() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { run(); }) {}

StreamRelay::~StreamRelay() {
  stop_.store(true);
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

Endpoint StreamRelay::front_of(const Endpoint& target, const std::string& host) {
  Front front{listen_tcp(host, 0), target};
  const Endpoint endpoint = local_endpoint(front.listener.get());
  const std::lock_guard lock(mutex_);
  fronts_.push_back(std::move(front));
  ::eventfd_write(wake_.get(), 1);
  return endpoint;
}

void StreamRelay::run() {
  while (!stop_.load()) {
    wait();
    accept_new();
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      const bool has_ended = connection->out.ended && connection->back.ended && connection->out.held.empty() &&
                             connection->back.held.empty();
      if (has_ended || passed_.load() >= cut_at_.load()) {
        connection = connections_.erase(connection);
        continue;
      }
      pump(connection->out);
      pump(connection->back);
      ++connection;
    }
    connected_.store(static_cast<int>(connections_.size()));
  }
}

std::size_t StreamRelay::may_pass() const {
  const std::uint64_t limit = std::min(stall_at_.load(), cut_at_.load()), passed = passed_.load();
  return static_cast<std::size_t>(std::min<std::uint64_t>(limit > passed ? limit - passed : 0, piece_.load()));
}

// Waits until a direction can continue; settings from outside take effect within 10 ms.
void StreamRelay::wait() {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
  {
    const std::lock_guard lock(mutex_);
    for (const Front& front : fronts_) polled.push_back({front.listener.get(), POLLIN, 0});
  }
  if (may_pass() > 0)
    for (const Connection& connection : connections_)
      for (const Direction* direction : {&connection.out, &connection.back}) {
        if (!direction->held.empty())
          polled.push_back({direction->to, POLLOUT, 0});
        else if (!direction->ended)
          polled.push_back({direction->from, POLLIN, 0});
      }
  ::poll(polled.data(), polled.size(), 10);
  eventfd_t unused = 0;
  ::eventfd_read(wake_.get(), &unused);
}

void StreamRelay::accept_new() {
  if (passed_.load() >= cut_at_.load()) return;
  const std::lock_guard lock(mutex_);
  for (const Front& front : fronts_) connect(front);
}

void StreamRelay::connect(const Front& front) {
  Fd near(::accept4(front.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!near) return;
  std::string why;
  Fd far = try_connect_tcp(front.target.host, front.target.port,
                           std::chrono::steady_clock::now() + std::chrono::seconds(5), why);
  if (!far) return;
  const int near_fd = near.get(), far_fd = far.get();
  connections_.push_back({std::move(near), std::move(far), {near_fd, far_fd, {}}, {far_fd, near_fd, {}}});
}

void StreamRelay::pump(Direction& direction) {
  const std::size_t most = may_pass();
  if (most == 0) return;
  if (direction.held.empty() && !direction.ended) {
    std::array<std::byte, 1 << 16> bytes;
    const ssize_t got = ::recv(direction.from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return end(direction);
    direction.held.assign(bytes.data(), bytes.data() + got);
  }
  std::size_t written = 0;
  while (written < direction.held.size() && may_pass() > 0) {
    const std::size_t piece = std::min(may_pass(), direction.held.size() - written);
    const ssize_t sent = ::send(direction.to, direction.held.data() + written, piece, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return end(direction);
    if (sent <= 0) break;
    written += static_cast<std::size_t>(sent);
    passed_.fetch_add(static_cast<std::uint64_t>(sent));
  }
  direction.held.erase(direction.held.begin(), direction.held.begin() + static_cast<std::ptrdiff_t>(written));
}

// Only this direction: what the other one still holds must arrive, for instance the goodbye of a rank that has closed
// its end.
void StreamRelay::end(Direction& direction) {
  direction.ended = true;
  direction.held.clear();
  ::shutdown(direction.to, SHUT_WR);
}

std::string RelayedStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  const std::string value = store_->get(key, timeout);
  if (key.find("/address/") == std::string_view::npos) return value;
  host::MeshAddress address = host::parse_mesh_address(value);
  const Endpoint front = relay_.front_of({address.host, address.port}, host_);
  address.host = front.host;
  address.port = front.port;
  return host::to_text(address);
}

}  // namespace lockstep::testing
