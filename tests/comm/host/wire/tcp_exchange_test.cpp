// Pieces over one, two and four sockets for each peer: every byte arrives at its place, and is counted once.
#include "src/comm/host/wire/tcp_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <numeric>
#include <thread>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/message_of.h"

namespace lockstep::host {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Kind = PieceQueue::Kind;

std::vector<std::byte> bytes(std::size_t count, unsigned seed) {
  std::vector<std::byte> all(count);
  std::uint32_t state = seed;
  for (std::byte& each : all) each = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  return all;
}

TEST(PieceQueue, PassesPiecesInOrder) {
  auto header = bytes(8, 1), data = bytes(10, 2), padding = bytes(6, 3);
  PieceQueue queue;
  EXPECT_TRUE(queue.idle());
  queue.add(header.data(), 8, Kind::kHeader);
  queue.add(data.data(), 0, Kind::kPayload);
  queue.add(data.data(), 10, Kind::kPayload);
  queue.add(padding.data(), 6, Kind::kPadding);
  EXPECT_EQ(queue.left(), 24u);
  EXPECT_FALSE(queue.advance(7).header_ended);
  EXPECT_TRUE(queue.at_header());
  const auto passed = queue.advance(4);
  EXPECT_TRUE(passed.header_ended);
  EXPECT_EQ(passed.payload, 3u);
  EXPECT_FALSE(queue.at_header());
  iovec room[4];
  const auto parts = queue.gather(room);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].iov_base, data.data() + 3);
  EXPECT_EQ(parts[0].iov_len, 7u);
  EXPECT_EQ(queue.gather(std::span(room, 1)).size(), 1u);
  EXPECT_EQ(queue.advance(13).payload, 7u) << "padding is no payload";
  EXPECT_TRUE(queue.idle());
}

TEST(PieceQueue, StopsFillingAtTheEndOfAHeader) {
  const auto source = bytes(12, 4);
  std::vector<std::byte> header(8), data(4);
  PieceQueue queue;
  queue.add(header.data(), 8, Kind::kHeader);
  queue.add(data.data(), 4, Kind::kPayload);
  PieceQueue::Passed passed;
  EXPECT_EQ(queue.fill(source, passed), 8u);
  EXPECT_TRUE(passed.header_ended);
  EXPECT_EQ(data, std::vector<std::byte>(4)) << "not before the header is compared";
  EXPECT_EQ(queue.fill(std::span(source).subspan(8), passed), 4u);
  EXPECT_TRUE(std::equal(source.begin() + 8, source.end(), data.begin()));
}

// Two ranks connected by that many sockets, with small buffers so that all of them fill.
struct Pair {
  explicit Pair(int sockets) {
    for (auto& side : peers) {
      side.resize(2);
      side[0].more.resize(static_cast<std::size_t>(sockets - 1));
      side[1].more.resize(static_cast<std::size_t>(sockets - 1));
    }
    for (int i = 0; i < sockets; ++i) {
      int ends[2];
      LOCKSTEP_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0, "socketpair");
      const auto at = static_cast<std::size_t>(i);
      (i == 0 ? peers[0][1].socket : peers[0][1].more[at - 1]) = Fd(ends[0]);
      (i == 0 ? peers[1][0].socket : peers[1][0].more[at - 1]) = Fd(ends[1]);
    }
  }
  std::vector<TcpPeer> peers[2];
};

TcpExchange::Events events() {
  return {.lost = [](int peer) { throw PeerLost("lost {}", peer); },
          .left = [](int peer) { throw PeerLost("left {}", peer); },
          .mismatch = [](int peer, const FrameHeader&) { throw MismatchError("mismatch {}", peer); },
          .late = [](const std::vector<int>& peers, bool) { throw TimeoutError("late {}", peers.at(0)); },
          .slept = [] { return std::chrono::nanoseconds(0); }};
}

FrameHeader header(std::uint64_t sequence) {
  FrameHeader header;
  header.signature.sequence = sequence;
  return header;
}

class Sockets : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(TcpExchange, Sockets, ::testing::Values(1, 2, 4));

TEST_P(Sockets, CarryPiecesOfAllSizesBothWays) {
  const std::vector<std::size_t> sizes = {1, 63, 64, 65, 0, 16'000, 131'071, 131'072, 131'073, 1'000'003, 3, 2'097'152};
  const std::size_t total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  Pair pair(GetParam());
  std::thread ranks[2];
  for (int rank = 0; rank < 2; ++rank)
    ranks[rank] = std::thread([&, rank] {
      TcpExchange exchange(rank, pair.peers[rank], events());
      for (unsigned round = 0; round < 3; ++round) {
        const auto mine = bytes(total, 10 * round + static_cast<unsigned>(rank));
        std::vector<std::byte> theirs(total);
        exchange.begin(header(round));
        std::size_t at = 0;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          exchange.send(1 - rank, mine.data() + at, sizes[i]);
          exchange.receive(1 - rank, theirs.data() + at, sizes[i]);
          at += sizes[i];
          if (i % 4 == 3) exchange.run(std::chrono::steady_clock::now() + 20s);
        }
        exchange.run(std::chrono::steady_clock::now() + 20s);
        EXPECT_EQ(theirs, bytes(total, 10 * round + static_cast<unsigned>(1 - rank)));
        EXPECT_EQ(exchange.payload_bytes_sent(), (round + 1) * total) << "neither headers nor padding";
      }
    });
  for (std::thread& rank : ranks) rank.join();
}

// The data of the wrong operation arrives on all sockets; none of it may reach the caller's memory.
TEST_P(Sockets, TakeNoDataOfAnotherOperation) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{1'000'000}}) {
    Pair pair(GetParam());
    std::thread other([&] {
      auto goes_on = events();
      goes_on.mismatch = [](int, const FrameHeader&) {};
      TcpExchange exchange(0, pair.peers[0], goes_on);
      const auto data = bytes(count, 1);
      exchange.begin(header(8));
      exchange.send(1, data.data(), count);
      message_of([&] { exchange.run(std::chrono::steady_clock::now() + 20s); });
    });
    TcpExchange exchange(1, pair.peers[1], events());
    std::vector<std::byte> mine(count);
    exchange.begin(header(7));
    exchange.receive(0, mine.data(), count);
    EXPECT_THAT(message_of([&] { exchange.run(std::chrono::steady_clock::now() + 20s); }), HasSubstr("mismatch 0"));
    EXPECT_EQ(mine, std::vector<std::byte>(count));
    shut_down(pair.peers[1]);
    other.join();
  }
}

TEST_P(Sockets, TellAGoodbyeFromADeath) {
  for (const bool says_goodbye : {true, false}) {
    Pair pair(GetParam());
    FrameHeader goodbye;
    goodbye.kind = FrameHeader::kGoodbye;
    const std::size_t said = says_goodbye ? sizeof goodbye : 0;
    ASSERT_EQ(send(pair.peers[0][1].socket.get(), &goodbye, said, 0), static_cast<ssize_t>(said));
    pair.peers[0].clear();
    TcpExchange exchange(1, pair.peers[1], events());
    std::vector<std::byte> mine(1'000'000);
    exchange.begin(header(7));
    exchange.receive(0, mine.data(), mine.size());
    EXPECT_THAT(message_of([&] { exchange.run(std::chrono::steady_clock::now() + 20s); }),
                HasSubstr(says_goodbye ? "left 0" : "lost 0"));
  }
}

// The peer has sent all its data, but its buffers had no room for a goodbye: the exchange cannot tell whether it left
// or died.
TEST_P(Sockets, LetAPeerGoThatHasFinished) {
  Pair early(GetParam()), late(GetParam());
  std::vector<TcpPeer> peers(3);
  peers[0] = std::move(early.peers[1][0]);
  peers[2] = std::move(late.peers[1][0]);
  const FrameHeader call = header(7);
  ASSERT_EQ(send(early.peers[0][1].socket.get(), &call, sizeof call, 0), static_cast<ssize_t>(sizeof call));
  std::thread goes_late([&] {
    std::this_thread::sleep_for(50ms);
    char theirs[sizeof call];
    while (recv(early.peers[0][1].socket.get(), theirs, sizeof theirs, 0) < 0) std::this_thread::yield();
    early.peers[0].clear();
    std::this_thread::sleep_for(100ms);
    ASSERT_EQ(send(late.peers[0][1].socket.get(), &call, sizeof call, 0), static_cast<ssize_t>(sizeof call));
  });
  TcpExchange exchange(1, peers, events());
  exchange.begin(call);
  EXPECT_NO_THROW(exchange.run(std::chrono::steady_clock::now() + 20s));
  goes_late.join();
}

// The peer's data has arrived, but it did not receive this rank's.
TEST_P(Sockets, MissAPeerThatGoesBeforeItTookEverything) {
  Pair pair(GetParam());
  const FrameHeader call = header(7);
  ASSERT_EQ(send(pair.peers[0][1].socket.get(), &call, sizeof call, 0), static_cast<ssize_t>(sizeof call));
  std::thread goes([&] {
    std::this_thread::sleep_for(50ms);
    pair.peers[0].clear();
  });
  TcpExchange exchange(1, pair.peers[1], events());
  const auto mine = bytes(8'000'000, 1);
  exchange.begin(call);
  exchange.send(0, mine.data(), mine.size());
  EXPECT_THAT(message_of([&] { exchange.run(std::chrono::steady_clock::now() + 20s); }), HasSubstr("lost 0"));
  goes.join();
}

TEST_P(Sockets, EndAtTheDeadline) {
  Pair pair(GetParam());
  TcpExchange exchange(1, pair.peers[1], events());
  exchange.begin(header(7));
  EXPECT_THAT(message_of([&] { exchange.run(std::chrono::steady_clock::now() + 50ms); }), HasSubstr("late 0"));
}

// Exact sums for several numbers of ranks and sockets; the number of bytes sent agrees with the formula.
TEST_P(Sockets, AllReduceExactly) {
  setenv(env::kSocketsPerPeer, std::to_string(GetParam()).c_str(), 1);
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, "tcp", [&](ProcessGroup& group) {
      for (const std::size_t count : {std::size_t{5}, std::size_t{100'001}, std::size_t{1'500'003}}) {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i)
          values[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(group.rank()));
        const std::uint64_t before = group.backend().counters().tcp_bytes;
        group.all_reduce(std::span(values));
        auto sent = static_cast<std::int64_t>(group.backend().counters().tcp_bytes - before);
        group.all_reduce(std::span(&sent, 1), ReduceOp::kSum);
        const auto others = static_cast<std::size_t>(ranks - 1);
        const std::size_t copies = count * sizeof(float) <= 8192 ? (others + 1) * others : 2 * others;
        EXPECT_EQ(static_cast<std::size_t>(sent), copies * count * sizeof(float));
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(values[i], static_cast<float>(ranks) * static_cast<float>(i % 1000) +
                                   static_cast<float>(ranks * (ranks - 1) / 2))
              << i;
      }
    });
  }
  unsetenv(env::kSocketsPerPeer);
}

}  // namespace
}  // namespace lockstep::host
