#include "src/comm/rendezvous/unix_rendezvous.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/net/socket.h"
#include "src/comm/net/token.h"
#include "src/comm/net/wait_notice.h"

namespace lockstep {

using Clock = std::chrono::steady_clock;

namespace {

struct SocketMessage {
  std::uint32_t port = 0;
  std::uint32_t token_bytes = 0;
  std::array<char, kTokenText> token{};
};

struct AbstractName {
  sockaddr_un address{};
  socklen_t size = 0;
};

AbstractName name_of_job(const std::string& job_id) {
  AbstractName name;
  name.address.sun_family = AF_UNIX;
  const std::string text = fmt::format("lockstep-{}-{}", geteuid(), job_id);  // sun_path[0] stays zero: abstract
  LOCKSTEP_CHECK(text.size() + 1 <= sizeof name.address.sun_path, "job id of {} bytes", job_id.size());
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

bool is_same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// Connects without waiting for room in the listener's queue, which the process that holds the name may never make.
// Empty, with errno: it cannot be reached now.
Fd try_connect(const AbstractName& name) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd && connect(fd.get(), reinterpret_cast<const sockaddr*>(&name.address), name.size) == 0) return fd;
  const int failure = errno;
  fd.reset();
  errno = failure;
  return fd;
}

constexpr const char* kTakesNone = "a process that takes no connection";
constexpr const char* kInstead =
    "start the ranks with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCKSTEP_TOKEN instead";

// Why this job's name is taken.
std::string name_the_holder(const AbstractName& name) {
  const Fd holder = try_connect(name);
  if (holder && is_same_user(holder.get())) return "is there a second rank 0?";
  return fmt::format("{} holds its abstract socket; {}", holder ? "another user's process" : kTakesNone, kInstead);
}

}  // namespace

class UnixRendezvousServer::Impl {
 public:
  Impl(const std::string& job_id, const StoreContact& contact) {
    LOCKSTEP_CHECK(contact.token.size() <= kTokenText, "token of {} bytes", contact.token.size());
    message_.port = contact.port;
    message_.token_bytes = static_cast<std::uint32_t>(contact.token.size());
    std::memcpy(message_.token.data(), contact.token.data(), contact.token.size());
    const AbstractName name = name_of_job(job_id);
    listener_ = Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener_ || bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name.address), name.size) != 0 ||
        listen(listener_.get(), 1024) != 0)
      throw RendezvousError("rank 0 cannot invite the other ranks of this job: {}",
                            errno == EADDRINUSE ? name_the_holder(name) : std::strerror(errno));
    stop_ = Fd(eventfd(0, EFD_CLOEXEC));
    thread_ = std::thread([this] { serve(); });
  }

  ~Impl() {
    const std::uint64_t one = 1;
    if (write(stop_.get(), &one, sizeof one) < 0)
      log::error("cannot stop the thread that tells other ranks the store's address: {}", std::strerror(errno));
    thread_.join();
  }

 private:
  void serve() {
    std::array<pollfd, 2> polled = {{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}}};
    while (poll(polled.data(), polled.size(), -1) >= 0 || errno == EINTR) {
      if (polled[0].revents != 0) return;
      const Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      // The message fits into any socket buffer, so that sending does not block.
      if (fd && is_same_user(fd.get())) send_all(fd.get(), std::as_bytes(std::span(&message_, 1)), Clock::now());
    }
  }

  SocketMessage message_;
  Fd listener_, stop_;
  std::thread thread_;
};

UnixRendezvousServer::UnixRendezvousServer(const std::string& job_id, const StoreContact& contact)
    : impl_(std::make_unique<Impl>(job_id, contact)) {}
UnixRendezvousServer::~UnixRendezvousServer() = default;

StoreContact query_unix_rendezvous(const std::string& job_id, std::chrono::milliseconds timeout) {
  const Deadline deadline = Clock::now() + timeout;
  const AbstractName name = name_of_job(job_id);
  WaitNotice notice;
  for (;;) {
    const Fd fd = try_connect(name);
    const bool is_full = !fd && errno == EAGAIN;
    if (fd) {
      if (!is_same_user(fd.get()))
        throw RendezvousError("another user's process answers for rank 0 of this job: refused; {}", kInstead);
      SocketMessage message;
      if (receive_all(fd.get(), std::as_writable_bytes(std::span(&message, 1)), deadline) == IoResult::kDone &&
          message.token_bytes <= kTokenText)
        return {static_cast<std::uint16_t>(message.port), std::string(message.token.data(), message.token_bytes)};
    }
    if (Clock::now() >= deadline)
      throw RendezvousError(
          "rank 0 of this job did not invite this rank within {} s: {}", static_cast<double>(timeout.count()) / 1000,
          is_full ? fmt::format("{} holds its abstract socket; {}", kTakesNone, kInstead) : "did it start?");
    notice.look([] { return "rank 0 of this job, which invites the other ranks of this machine"; });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace lockstep
