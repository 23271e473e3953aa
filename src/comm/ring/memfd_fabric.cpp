#include "src/comm/ring/memfd_fabric.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/ring/control_block.h"
#include "src/comm/ring/unix_link.h"
#include "src/comm/socket.h"
#include "src/comm/token_proof.h"

namespace lockstep::ring {

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

// Sealed in its size: a peer that shrank it would make the others crash at the next access.
Fd make_memfd(std::size_t bytes) {
  Fd fd(memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw Error("cannot make {} bytes of shared memory: {}", bytes, std::strerror(errno));
  return fd;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// A pipe whose writing end only this process holds: when it is gone, the readers' ends hang up. Peers need no process
// ids for that, which mean nothing in another pid namespace.
struct LifeLine {
  Fd read, write;
};
LifeLine make_life_line() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error("cannot make a pipe: {}", std::strerror(errno));
  return {Fd(ends[0]), Fd(ends[1])};
}

class MemfdFabric : public LocalFabric {
 public:
  MemfdFabric(int rank, std::vector<UnixLink> links, std::vector<Fd> peer_lines, LifeLine own_line)
      : rank_(rank), links_(std::move(links)), peer_lines_(std::move(peer_lines)), own_line_(std::move(own_line)) {
    for (const Fd& line : peer_lines_) watched_.push_back(line.get());
  }

  std::shared_ptr<SharedSegment> share(std::size_t bytes, std::chrono::milliseconds timeout) override {
    const Deadline deadline = Clock::now() + timeout;
    return rank_ == 0 ? give(bytes, deadline) : take(bytes, deadline);
  }
  std::span<const int> life_lines() const override { return watched_; }
  PeerMemory* peer_memory() override { return peer_memory_.get(); }
  void set_peer_memory(std::unique_ptr<PeerMemory> memory) { peer_memory_ = std::move(memory); }
  void ring() noexcept override {
    const std::lock_guard lock(line_mutex_);
    if (!own_line_.write) return;
    [[maybe_unused]] const auto written = write(own_line_.write.get(), "!", 1);  // a pipe that holds nothing else has room
  }
  void close() noexcept override {
    const std::lock_guard lock(line_mutex_);
    own_line_ = LifeLine();
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
    for (const UnixLink& link : links_) {
      try {
        if (link.socket) link.send(bytes_of(message), fd.get(), deadline);
      } catch (const Error& error) {  // the others must hear from this rank all the same
        undelivered = error.what();
      }
    }
    if (!fd || !undelivered.empty()) throw Error("{}", !fd ? message : undelivered);
    return std::make_shared<MemfdSegment>(fd.get(), bytes);
  }

  std::shared_ptr<SharedSegment> take(std::size_t bytes, Deadline deadline) {
    Fd fd;
    const auto message = links_[0].receive(512, &fd, deadline);
    if (!fd) throw Error("rank 0: {}", std::string_view(reinterpret_cast<const char*>(message.data()), message.size()));
    return std::make_shared<MemfdSegment>(fd.get(), bytes);
  }

  int rank_;
  std::vector<UnixLink> links_;  // by rank: rank 0 has one to each, each has one to rank 0
  std::vector<Fd> peer_lines_;   // by rank; none for this rank
  std::mutex line_mutex_;
  LifeLine own_line_;  // the reading end as well: to ring when all peers are gone must not be a broken pipe
  std::vector<int> watched_;
  std::unique_ptr<PeerMemory> peer_memory_;
};

// -- the handshake. Rank 0: its nonce. The other: rank, its nonce, its proof, its life line. Rank 0: its proof.
struct Hello {
  std::uint32_t rank;
  Nonce nonce;
  crypto::Digest proof;
};

UnixLink welcome_one(const Fd& listener, const BackendContext& context, std::vector<Fd>& lines, int& rank, Deadline deadline) {
  UnixLink link{accept_own_user(listener.get(), deadline), "a connecting rank"};
  const Nonce nonce = make_nonce();
  link.send(nonce, -1, deadline);
  Fd line;
  const auto message = link.receive(sizeof(Hello), &line, deadline);
  Hello hello;
  if (message.size() != sizeof hello) throw Error("a connection to rank 0's abstract socket spoke another protocol");
  std::memcpy(&hello, message.data(), sizeof hello);
  const bool is_peer = hello.rank > 0 && hello.rank < lines.size();
  if (!is_peer || !line || !is_proven(hello.proof, context.token, Role::kLinkConnector, hello.nonce, nonce, static_cast<int>(hello.rank)))
    throw Error("a connection that calls itself rank {} could not prove that it knows the job's token", hello.rank);
  if (lines[hello.rank]) throw Error("two processes say that they are rank {}", hello.rank);
  rank = static_cast<int>(hello.rank);
  link.peer = fmt::format("rank {}", rank);
  lines[hello.rank] = std::move(line);
  link.send(prove(context.token, Role::kLinkAcceptor, hello.nonce, nonce, 0), -1, deadline);
  return link;
}

std::unique_ptr<MemfdFabric> welcome_all(const Fd& listener, const BackendContext& context, Deadline deadline) {
  const auto n = static_cast<std::size_t>(context.place.world_size);
  LifeLine own = make_life_line();
  std::vector<UnixLink> links(n);
  std::vector<Fd> lines(n);
  for (std::size_t count = 1; count < n; ++count) {
    int rank = 0;
    UnixLink link = welcome_one(listener, context, lines, rank, deadline);
    links[static_cast<std::size_t>(rank)] = std::move(link);
  }
  for (std::size_t to = 1; to < n; ++to)
    for (std::size_t of = 0; of < n; ++of)
      if (of != to) links[to].send(bytes_of("line"), of == 0 ? own.read.get() : lines[of].get(), deadline);
  return std::make_unique<MemfdFabric>(0, std::move(links), std::move(lines), std::move(own));
}

std::unique_ptr<MemfdFabric> join(Fd socket, const BackendContext& context, Deadline deadline) {
  const auto n = static_cast<std::size_t>(context.place.world_size);
  const int rank = context.place.rank;
  LifeLine own = make_life_line();
  std::vector<UnixLink> links(1);
  UnixLink& link = links[0];
  link = {std::move(socket), "rank 0"};
  Hello hello{static_cast<std::uint32_t>(rank), make_nonce(), {}};
  Nonce nonce;
  const auto challenge = link.receive(sizeof nonce, nullptr, deadline);
  if (challenge.size() != sizeof nonce) throw Error("rank 0's abstract socket spoke another protocol");
  std::memcpy(nonce.data(), challenge.data(), sizeof nonce);
  hello.proof = prove(context.token, Role::kLinkConnector, hello.nonce, nonce, rank);
  link.send(std::as_bytes(std::span(&hello, 1)), own.read.get(), deadline);
  crypto::Digest answer{};
  const auto proof = link.receive(sizeof answer, nullptr, deadline);
  if (proof.size() == sizeof answer) std::memcpy(answer.data(), proof.data(), sizeof answer);
  if (!is_proven(answer, context.token, Role::kLinkAcceptor, hello.nonce, nonce, 0))
    throw Error("what answers as rank 0 could not prove that it knows the job's token");
  std::vector<Fd> lines(n);
  for (std::size_t of = 0; of < n; ++of) {
    if (static_cast<int>(of) == rank) continue;
    link.receive(16, &lines[of], deadline);
    if (!lines[of]) throw Error("rank 0 handed over no life line of rank {}", of);
  }
  return std::make_unique<MemfdFabric>(rank, std::move(links), std::move(lines), std::move(own));
}

// Every rank says "" or why not; rank 0 reads all and decides; the decision is the first reason, or "".
std::string agree(const BackendContext& context, const std::string& about, const std::string& mine) {
  Store& store = *context.store;
  if (context.place.rank != 0) {
    store.set(fmt::format("shm/{}/{}", about, context.place.rank), mine);
    return store.get("shm/" + about, context.store_timeout);
  }
  std::string decision = mine.empty() ? "" : "rank 0: " + mine;
  for (int rank = 1; rank < context.place.world_size; ++rank) {
    const std::string reason = store.get(fmt::format("shm/{}/{}", about, rank), context.store_timeout);
    if (decision.empty() && !reason.empty()) decision = fmt::format("rank {}: {}", rank, reason);
  }
  store.set("shm/" + about, decision);
  return decision;
}

// What `attempt` throws as text; "" when it succeeds.
template <typename Attempt>
std::string reason_of_failure(Attempt&& attempt) {
  try {
    attempt();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

LocalMeeting meet_on_this_machine(const BackendContext& context, bool reach_memory) {
  const Deadline deadline = Clock::now() + context.store_timeout;
  const bool is_first = context.place.rank == 0;
  Fd socket;  // rank 0's listener, the others' connection
  std::string failure = reason_of_failure([&] {
    if (!is_first) {
      const std::string name = context.store->get("shm/name", context.store_timeout);
      if (name.empty()) throw Error("rank 0 has no abstract socket");
      socket = connect_to_abstract_name(name);
      return;
    }
    std::array<std::byte, 16> random;
    crypto::fill_random(random);
    const std::string name = "lockstep-" + crypto::hex(random);
    const std::string trouble = reason_of_failure([&] { socket = listen_on_abstract_name(name); });
    context.store->set("shm/name", trouble.empty() ? name : "");
    if (!trouble.empty()) throw Error("{}", trouble);
  });
  std::unique_ptr<MemfdFabric> fabric;
  std::unique_ptr<ProcessMemory> memory;
  LocalMeeting meeting;
  meeting.refusal = agree(context, "reached", failure);
  if (!meeting.refusal.empty()) return meeting;
  failure = reason_of_failure([&] {
    fabric = is_first ? welcome_all(socket, context, deadline) : join(std::move(socket), context, deadline);
    meeting.control = fabric->share(ControlLayout::bytes(context.place.world_size), context.store_timeout);
    const ControlLayout layout(meeting.control->data(), context.place.world_size);
    if (reach_memory) memory = std::make_unique<ProcessMemory>(layout, context.place.rank);
  });
  socket = Fd();  // first: who still waits for rank 0 hears at once that it gave up
  if (!failure.empty()) fabric.reset();
  meeting.refusal = agree(context, "mapped", failure);
  if (!meeting.refusal.empty()) return {nullptr, nullptr, meeting.refusal};
  if (reach_memory) {
    const std::string refusal = agree(context, "reached memory", reason_of_failure([&] { memory->prove(); }));
    if (refusal.empty())
      fabric->set_peer_memory(std::move(memory));
    else if (is_first)
      log::warn("ring: large messages in plain memory go through shared windows, for {}", refusal);
  }
  meeting.fabric = std::move(fabric);
  return meeting;
}

}  // namespace lockstep::ring
