#include "src/comm/host/machine/memfd_provider.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/net/socket.h"
#include "src/comm/net/token.h"
#include "src/comm/net/unix_connection.h"
#include "src/comm/rendezvous/group_rendezvous.h"

namespace lockstep::host {

namespace {

using Clock = std::chrono::steady_clock;

class MemfdSegment : public SharedSegment {
 public:
  MemfdSegment(int fd, std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) throw Error("cannot map {} bytes of shared memory: {}", bytes, std::strerror(errno));
    data_ = static_cast<std::byte*>(memory);
  }
  ~MemfdSegment() override { munmap(data_, bytes_); }
  std::byte* data() const override { return data_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// Sealed in size: otherwise a peer that shrinks it would make the others crash at the next access.
Fd make_memfd(std::size_t bytes) {
  Fd fd(memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw Error("cannot make {} bytes of shared memory: {}", bytes, std::strerror(errno));
  return fd;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// A pipe whose writing end only this process holds: when the process exits, the readers' ends hang up. Process ids
// would not do, since they have no meaning in another pid namespace.
struct LivenessPipe {
  Fd read;
  ProcessFd write;
};
LivenessPipe make_liveness_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error("cannot make a pipe: {}", std::strerror(errno));
  return {Fd(ends[0]), Fd(ends[1])};
}

class MemfdProvider : public SharedMemoryProvider {
 public:
  MemfdProvider(int local_rank, std::vector<UnixConnection> links, std::vector<Fd> peer_fds, LivenessPipe own_pipe)
      : local_rank_(local_rank),
        links_(std::move(links)),
        peer_fds_(std::move(peer_fds)),
        own_pipe_(std::move(own_pipe)) {
    for (const Fd& line : peer_fds_) watched_.push_back(line.get());
  }

  std::shared_ptr<SharedSegment> share(std::size_t bytes, std::chrono::milliseconds timeout) override {
    const Deadline deadline = Clock::now() + timeout;
    return local_rank_ == 0 ? give(bytes, deadline) : take(bytes, deadline);
  }
  std::span<const int> liveness_fds() const override { return watched_; }
  void wake_peers() noexcept override {
    const std::lock_guard lock(pipe_mutex_);
    if (!own_pipe_.write) return;
    // An otherwise empty pipe has room.
    [[maybe_unused]] const auto written = write(own_pipe_.write.get(), "!", 1);
  }
  void close() noexcept override {
    const std::lock_guard lock(pipe_mutex_);
    own_pipe_ = LivenessPipe();
  }

 private:
  // A message without a descriptor carries the reason why there is none.
  std::shared_ptr<SharedSegment> give(std::size_t bytes, Deadline deadline) {
    Fd fd;
    std::string message = "segment";
    try {
      fd = make_memfd(bytes);
    } catch (const Error& error) {
      message = error.what();
    }
    std::string undelivered;
    for (const UnixConnection& link : links_) {
      try {
        if (link.socket) link.send(bytes_of(message), fd.get(), deadline);
      } catch (const Error& error) {  // the others must get an answer from this rank all the same
        undelivered = error.what();
      }
    }
    if (!fd || !undelivered.empty()) throw Error("{}", !fd ? message : undelivered);
    return std::make_shared<MemfdSegment>(fd.get(), bytes);
  }

  std::shared_ptr<SharedSegment> take(std::size_t bytes, Deadline deadline) {
    Fd fd;
    const auto message = links_[0].receive(512, &fd, deadline);
    if (!fd)
      throw Error("{}: {}", links_[0].peer,
                  std::string_view(reinterpret_cast<const char*>(message.data()), message.size()));
    return std::make_shared<MemfdSegment>(fd.get(), bytes);
  }

  int local_rank_;
  std::vector<UnixConnection>
      links_;                 // by local rank: the leader has one to each rank, each rank has one to the leader
  std::vector<Fd> peer_fds_;  // by local rank; none for this rank
  std::mutex pipe_mutex_;
  LivenessPipe own_pipe_;  // keeps the reading end, too: waking peers that have all exited must not raise SIGPIPE
  std::vector<int> watched_;
};

// -- the handshake. The leader sends its nonce; the other rank sends its rank, nonce, proof and liveness fd; the leader
// sends its proof.
struct Hello {
  std::uint32_t rank;
  Nonce nonce;
  crypto::Digest proof;
};

// A process of this user that is not a rank, or that breaks the protocol.
class UnauthenticatedPeer : public Error {
 public:
  using Error::Error;
};

// For one connection: a silent unauthenticated peer must not delay the ranks after it for long.
constexpr auto kMemoryHandshakeTime = std::chrono::seconds(5);
constexpr int kReportedUnauthenticated = 20;

// Sends `nonce` and returns the answer, with the liveness fd that came with it.
Hello challenge(const UnixConnection& link, const Nonce& nonce, Fd& line, int own_rank, Deadline deadline) {
  Hello hello;
  std::vector<std::byte> message;
  try {
    link.send(nonce, -1, deadline);
    message = link.receive(sizeof(Hello), &line, deadline);
  } catch (const Error& error) {
    throw UnauthenticatedPeer("{}", error.what());
  }
  if (message.size() != sizeof hello)
    throw UnauthenticatedPeer("a connection to the abstract socket of rank {} uses another protocol", own_rank);
  std::memcpy(&hello, message.data(), sizeof hello);
  return hello;
}

Fd accept_one(const Fd& listener, const NodeMembers& members, Deadline deadline) {
  for (;;) {
    if (auto link = accept_own_user(listener.get(), std::min(deadline, Clock::now() + kPresenceTime)))
      return *std::move(link);
    if (members.check_presence) members.check_presence();
    if (Clock::now() >= deadline)
      throw Error("not all ranks of this machine connected to the abstract socket of the lowest one in time");
  }
}

UnixConnection welcome_one(const Fd& listener, const NodeMembers& members, std::vector<Fd>& lines,
                           std::size_t& local_rank, Deadline deadline) {
  UnixConnection link{accept_one(listener, members, deadline), "a connecting process"};
  deadline = std::min(deadline, Clock::now() + kMemoryHandshakeTime);
  ProofExchange exchange(members.token, Role::kMemoryAcceptor, members.rank());
  Fd line;
  const Hello hello = challenge(link, exchange.nonce(), line, members.rank(), deadline);
  const auto place = std::find(members.ranks.begin() + 1, members.ranks.end(), static_cast<int>(hello.rank));
  if (place == members.ranks.end() || !line)
    throw UnauthenticatedPeer("a connection claims to be rank {}, which is not expected here", hello.rank);
  exchange.note_peer(hello.nonce, static_cast<int>(hello.rank));
  if (!exchange.accepts(hello.proof))
    throw Error("a connection that claims to be rank {} could not prove that it knows the job's token", hello.rank);
  local_rank = static_cast<std::size_t>(place - members.ranks.begin());
  if (lines[local_rank]) throw Error("two processes claim to be rank {}", hello.rank);
  link.peer = fmt::format("rank {}", hello.rank);
  lines[local_rank] = std::move(line);
  link.send(exchange.proof(), -1, deadline);
  return link;
}

std::unique_ptr<SharedMemoryProvider> welcome_all(const Fd& listener, const NodeMembers& members, Deadline deadline) {
  const std::size_t n = members.ranks.size();
  LivenessPipe own = make_liveness_pipe();
  std::vector<UnixConnection> links(n);
  std::vector<Fd> lines(n);
  int unauthenticated = 0;
  for (std::size_t count = 1; count < n;) {
    try {
      std::size_t local_rank = 0;
      UnixConnection link = welcome_one(listener, members, lines, local_rank, deadline);
      links[local_rank] = std::move(link);
      ++count;
    } catch (const UnauthenticatedPeer& error) {
      if (++unauthenticated > kReportedUnauthenticated) continue;
      log::warn("backend host: rank {} closed a connection in its handshake: {}", members.rank(), error.what());
    }
  }
  for (std::size_t to = 1; to < n; ++to)
    for (std::size_t of = 0; of < n; ++of)
      if (of != to) links[to].send(bytes_of("line"), of == 0 ? own.read.get() : lines[of].get(), deadline);
  return std::make_unique<MemfdProvider>(0, std::move(links), std::move(lines), std::move(own));
}

std::unique_ptr<SharedMemoryProvider> join(Fd socket, const NodeMembers& members, Deadline deadline) {
  const std::size_t n = members.ranks.size();
  LivenessPipe own = make_liveness_pipe();
  std::vector<UnixConnection> links(1);
  UnixConnection& link = links[0];
  link = {std::move(socket), fmt::format("rank {}", members.leader())};
  ProofExchange exchange(members.token, Role::kMemoryConnector, members.rank());
  Nonce nonce;
  const auto challenge = link.receive(sizeof nonce, nullptr, deadline);
  if (challenge.size() != sizeof nonce) throw Error("the abstract socket of {} uses another protocol", link.peer);
  std::memcpy(nonce.data(), challenge.data(), sizeof nonce);
  exchange.note_peer(nonce, members.leader());
  const Hello hello{static_cast<std::uint32_t>(members.rank()), exchange.nonce(), exchange.proof()};
  link.send(std::as_bytes(std::span(&hello, 1)), own.read.get(), deadline);
  crypto::Digest answer{};
  const auto proof = link.receive(sizeof answer, nullptr, deadline);
  if (proof.size() == sizeof answer) std::memcpy(answer.data(), proof.data(), sizeof answer);
  if (!exchange.accepts(answer))
    throw Error("the process that answers as {} could not prove that it knows the job's token", link.peer);
  std::vector<Fd> lines(n);
  for (std::size_t of = 0; of < n; ++of) {
    if (static_cast<int>(of) == members.local_rank) continue;
    link.receive(16, &lines[of], deadline);
    if (!lines[of]) throw Error("{} sent no liveness fd for rank {}", link.peer, members.ranks[of]);
  }
  return std::make_unique<MemfdProvider>(members.local_rank, std::move(links), std::move(lines), std::move(own));
}

}  // namespace

std::unique_ptr<SharedMemoryProvider> make_memfd_provider(Fd socket, const NodeMembers& members, Deadline deadline) {
  return members.local_rank == 0 ? welcome_all(socket, members, deadline) : join(std::move(socket), members, deadline);
}

}  // namespace lockstep::host
