// send and recv on every transport: tags, any sender, order, sizes above all buffers, and the ends of waits.
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "tests/conformance/cases.h"

namespace lockstep::testing {
namespace {

class Messages : public OverBackends {};

class LostMessages : public Messages {};  // needs a peer, and a backend that notifies the others

Message message(void* data, std::size_t count, DType dtype, int peer, int tag,
                milliseconds timeout = std::chrono::seconds(20)) {
  return {data, count, dtype, peer, tag, nullptr, timeout};
}
void send(Rank& rank, const void* data, std::size_t count, int to, int tag = 0) {
  rank.backend().send(message(const_cast<void*>(data), count, DType::kInt32, to, tag)).wait();
}
int receive(Rank& rank, void* data, std::size_t count, int from, int tag = 0,
            milliseconds timeout = std::chrono::seconds(20)) {
  int sender = -7;
  Message wanted = message(data, count, DType::kInt32, from, tag, timeout);
  wanted.sender = &sender;
  rank.backend().receive(wanted).wait();
  return sender;
}

// Must be done at once; with a GPU, soon, since it has yet to copy the data.
bool is_done(const Rank& rank, const Work& work) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(rank.has_gpu_memory() ? 8 : 0);
  while (!work.done()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::yield();
  }
  return true;
}

std::vector<std::int32_t> numbers(std::size_t count, int seed) {
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::int32_t>(i * 2654435761u) + seed;
  return values;
}

TEST_P(Messages, GoAroundInARingInEverySize) {
  run_threads(spec(), [](Rank& rank) {
    const int to = (rank.rank() + 1) % rank.ranks(), from = (rank.rank() + rank.ranks() - 1) % rank.ranks();
    for (const std::size_t count : {0, 1, 100, 16384, 16385, 100003, 1000003}) {
      const auto sent = numbers(count, rank.rank());
      std::vector<std::int32_t> got(count);
      const Work out =
          rank.backend().send(message(const_cast<std::int32_t*>(sent.data()), count, DType::kInt32, to, 5));
      EXPECT_EQ(receive(rank, got.data(), count, from, 5), from);
      out.wait();
      EXPECT_EQ(got, numbers(count, from)) << count;
    }
  });
}

// Messages that are not received yet make room for those after them, whatever their size.
TEST_P(Messages, AreFoundByTagInAnyOrder) {
  run_threads(spec(), [](Rank& rank) {
    constexpr std::size_t kCount = 40000;  // more than a channel holds
    constexpr int kTags = 6;
    if (rank.rank() == 0) {
      for (int to = 1; to < rank.ranks(); ++to)
        for (int tag = 0; tag < kTags; ++tag) send(rank, numbers(kCount, tag * 10 + to).data(), kCount, to, tag);
    } else {
      std::vector<std::int32_t> got(kCount);
      for (int tag = kTags - 1; tag >= 0; --tag) {
        EXPECT_EQ(receive(rank, got.data(), kCount, 0, tag), 0);
        EXPECT_EQ(got, numbers(kCount, tag * 10 + rank.rank())) << tag;
      }
    }
  });
}

TEST_P(Messages, OfOneTagStayInOrder) {
  run_threads(spec(), [](Rank& rank) {
    constexpr int kMessages = 300;
    const int to = (rank.rank() + 1) % rank.ranks(), from = (rank.rank() + rank.ranks() - 1) % rank.ranks();
    std::array<std::int32_t, kMessages> sent{}, got{};
    std::iota(sent.begin(), sent.end(), rank.rank() * 1000);
    std::vector<Work> works;
    for (std::size_t i = 0; i < kMessages; ++i) {
      works.push_back(rank.backend().receive(message(&got[i], 1, DType::kInt32, from, 1)));
      works.push_back(rank.backend().send(message(&sent[i], 1, DType::kInt32, to, 1)));
    }
    for (const Work& work : works) work.wait();
    for (const Work& work : works) EXPECT_TRUE(work.done());
    for (int i = 0; i < kMessages; ++i) ASSERT_EQ(got[static_cast<std::size_t>(i)], from * 1000 + i);
  });
}

TEST_P(Messages, FromAnyRankTellTheSender) {
  run_threads(spec(), [](Rank& rank) {
    constexpr int kRounds = 20;
    if (rank.rank() != 0) {
      for (std::int32_t round = 0; round < kRounds; ++round) send(rank, &round, 1, 0, 9);
      return;
    }
    std::vector<int> next(static_cast<std::size_t>(rank.ranks()));
    for (int i = 0; i < kRounds * (rank.ranks() - 1); ++i) {
      std::int32_t got = -1;
      const int sender = receive(rank, &got, 1, kAnyRank, 9);
      ASSERT_GT(sender, 0);
      ASSERT_EQ(got, next[static_cast<std::size_t>(sender)]++) << "of rank " << sender;
    }
  });
}

TEST_P(Messages, ToOneself) {
  run_threads(spec(), [](Rank& rank) {
    const auto sent = numbers(70000, rank.rank());
    std::vector<std::int32_t> got(sent.size());
    send(rank, sent.data(), sent.size(), rank.rank(), 3);
    EXPECT_EQ(receive(rank, got.data(), got.size(), rank.rank(), 3), rank.rank());
    EXPECT_EQ(got, sent);
    std::int32_t late = 0, one = 1;
    const Work work = rank.backend().receive(message(&late, 1, DType::kInt32, rank.rank(), 4));
    EXPECT_FALSE(work.done());
    send(rank, &one, 1, rank.rank(), 4);
    EXPECT_TRUE(is_done(rank, work));
    EXPECT_EQ(late, 1);
  });
}

// Collectives on the communication thread and messages do not wait for each other.
TEST_P(Messages, PassBesideCollectives) {
  run_threads(spec(), [](Rank& rank) {
    if (rank.ranks() == 1) return;
    std::vector<float> data(200000, 1.0f);
    const Work collective =
        rank.backend().start(rank.reduction(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum));
    const int to = (rank.rank() + 1) % rank.ranks(), from = (rank.rank() + rank.ranks() - 1) % rank.ranks();
    const auto sent = numbers(50000, rank.rank());
    std::vector<std::int32_t> got(sent.size());
    const Work out =
        rank.backend().send(message(const_cast<std::int32_t*>(sent.data()), sent.size(), DType::kInt32, to, 0));
    receive(rank, got.data(), got.size(), from);
    out.wait();
    collective.wait();
    EXPECT_EQ(got, numbers(50000, from));
    EXPECT_EQ(data[199999], static_cast<float>(rank.ranks()));
  });
}

// Two threads wait, each for its own message; whichever moves the bytes, both return.
TEST_P(Messages, MayBeWaitedForByTwoThreads) {
  run_threads(spec(), [](Rank& rank) {
    if (rank.ranks() == 1) return;
    const int peer = rank.rank() ^ 1;
    if (peer < rank.ranks())
      for (int round = 0; round < 50; ++round) {
        const auto start = std::chrono::steady_clock::now();
        std::int32_t first = 0, second = 0, mine = rank.rank() * 100 + round;
        const Work a = rank.backend().receive(message(&first, 1, DType::kInt32, peer, 1));
        const Work b = rank.backend().receive(message(&second, 1, DType::kInt32, peer, 2));
        std::thread other([&] { a.wait(); });
        send(rank, &mine, 1, peer, 2);
        b.wait();
        send(rank, &mine, 1, peer, 1);
        other.join();
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
        EXPECT_EQ(first, peer * 100 + round);
        EXPECT_EQ(second, peer * 100 + round);
      }
    rank.barrier();
  });
}

TEST_P(Messages, OneOfSeveralIsFoundWhicheverComes) {
  run_threads(spec(), [](Rank& rank) {
    constexpr int kTags = 4;
    const int to = (rank.rank() + 1) % rank.ranks(), from = (rank.rank() + rank.ranks() - 1) % rank.ranks();
    std::array<std::int32_t, kTags> got{};
    std::vector<Work> wanted;
    std::vector<int> tags = {0, 1, 2, 3};
    for (int tag = 0; tag < kTags; ++tag)
      wanted.push_back(
          rank.backend().receive(message(&got[static_cast<std::size_t>(tag)], 1, DType::kInt32, from, tag)));
    EXPECT_EQ(wait_any(wanted, milliseconds(1)), std::nullopt) << "and they go on";
    rank.barrier();
    for (const int tag : {2, 0, 3, 1}) {
      const std::int32_t number = 10 + tag;
      send(rank, &number, 1, to, tag);
      const auto come = wait_any(wanted, std::chrono::seconds(20));
      ASSERT_TRUE(come.has_value());
      EXPECT_EQ(tags[*come], tag);
      EXPECT_EQ(got[static_cast<std::size_t>(tag)], number);
      wanted.erase(wanted.begin() + static_cast<std::ptrdiff_t>(*come));
      tags.erase(tags.begin() + static_cast<std::ptrdiff_t>(*come));
      rank.barrier();
    }
  });
}

// A waiter that is not woken would return only at its deadline.
constexpr milliseconds kPromptly = std::chrono::seconds(8);

TEST_P(Messages, ToOneselfWakeTheThreadThatWaits) {
  run_threads(spec(), [](Rank& rank) {
    std::int32_t got = 0, one = 1;
    const Work work = rank.backend().receive(message(&got, 1, DType::kInt32, rank.rank(), 4));
    const auto start = std::chrono::steady_clock::now();
    std::thread waiter([&] { work.wait(); });
    std::this_thread::sleep_for(milliseconds(20));
    send(rank, &one, 1, rank.rank(), 4);
    waiter.join();
    EXPECT_LT(std::chrono::steady_clock::now() - start, kPromptly);
    EXPECT_EQ(got, 1);
    rank.barrier();
  });
}

// done() in one thread receives the message for which another thread sleeps.
TEST_P(Messages, ThatAnotherThreadTookInWakeTheWaiter) {
  run_threads(spec(), [](Rank& rank) {
    if (rank.rank() == 0)
      for (int peer = 1; peer < rank.ranks(); ++peer)
        for (const int tag : {1, 2}) {
          std::this_thread::sleep_for(milliseconds(20));
          const std::int32_t number = tag;
          send(rank, &number, 1, peer, tag);
        }
    if (rank.rank() != 0) {
      std::int32_t first = 0, second = 0;
      const Work a = rank.backend().receive(message(&first, 1, DType::kInt32, 0, 1));
      const Work b = rank.backend().receive(message(&second, 1, DType::kInt32, 0, 2));
      const auto start = std::chrono::steady_clock::now();
      std::thread waiter([&] { a.wait(); });
      while (!b.done()) std::this_thread::yield();
      waiter.join();
      EXPECT_LT(std::chrono::steady_clock::now() - start, kPromptly);
      EXPECT_EQ(first + second, 3);
    }
    rank.barrier();
  });
}

// Sent data arrives although its sender has left meanwhile, with an unread message.
TEST_P(LostMessages, AreNotThoseOfARankThatLeft) {
  constexpr std::size_t kCount = 250000;
  const auto outcomes = outcomes_of_threads(spec(), [](Rank& rank) {
    std::vector<std::int32_t> data = numbers(kCount, 3);
    if (rank.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(20));
      send(rank, data.data(), kCount, 1, 0);
      rank.leave();
    } else if (rank.rank() == 1) {
      send(rank, data.data(), 1, 0, 9);  // no rank receives it
      std::this_thread::sleep_for(milliseconds(GetParam().wire == Wire::kTcp ? 100 : 0));
      std::vector<std::int32_t> got(kCount);
      EXPECT_EQ(receive(rank, got.data(), kCount, 0, 0), 0);
      EXPECT_EQ(got, data);
    }
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.kind, "none") << outcome.text;
}

// An endless message does not keep others from being received.
TEST_P(LostMessages, AreNotThoseBesideAFlood) {
  run_threads(spec(), [](Rank& rank) {
    constexpr int kFlood = 100;  // 20 MB, which no buffer holds
    std::vector<std::int32_t> data(50000);
    std::int32_t number = 5;
    if (rank.rank() == 1) {
      send(rank, &number, 1, 0, 5);
      for (int i = 0; i < kFlood; ++i) send(rank, data.data(), data.size(), 0, 6);
    } else if (rank.rank() == 0) {
      EXPECT_EQ(receive(rank, &number, 1, 1, 5), 1);
      for (int i = 0; i < kFlood; ++i) receive(rank, data.data(), data.size(), 1, 6);
    }
    rank.barrier();
  });
}

TEST_P(LostMessages, ThatDisagreeEndTheGroup) {
  const auto outcomes = outcomes_of_threads(spec(), [](Rank& rank) {
    std::int32_t values[8] = {};
    if (rank.rank() == 0) send(rank, values, 7, 1, 2);
    if (rank.rank() == 1) receive(rank, values, 8, 0, 2);
    rank.barrier();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "mismatch") << outcome.text;
    EXPECT_NE(outcome.text.find("rank 0 sent int32 x 7 with tag 2 to rank 1, which receives int32 x 8"),
              std::string::npos)
        << outcome.text;
  }
}

TEST_P(LostMessages, ThatDoNotComeEndAtTheDeadline) {
  const auto outcomes = outcomes_of_threads(spec(), [](Rank& rank) {
    std::int32_t value = 0;
    if (rank.rank() == 0) receive(rank, &value, 1, 1, 2, milliseconds(200));
    rank.barrier();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "timeout") << outcome.text;
    EXPECT_NE(outcome.text.find("recv from rank 1 (tag 2, int32 x 1)"), std::string::npos) << outcome.text;
  }
}

TEST_P(LostMessages, FromARankThatLeftAreReadAndThenItIsMissed) {
  const auto outcomes = outcomes_of_threads(spec(), [](Rank& rank) {
    std::int32_t value = 42;
    if (rank.rank() == 1) {
      send(rank, &value, 1, 0, 2);
      rank.leave();
    } else if (rank.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      std::int32_t got = 0;
      receive(rank, &got, 1, 1, 2);
      EXPECT_EQ(got, 42);
      receive(rank, &got, 1, 1, 2);
    }
  });
  EXPECT_EQ(outcomes[0].kind, "peer lost");
  EXPECT_NE(outcomes[0].text.find("has left the group"), std::string::npos) << outcomes[0].text;
  EXPECT_EQ(outcomes[1].kind, "none") << outcomes[1].text;
}

// One that has left, of those for which a rank waits, is enough.
TEST_P(LostMessages, AmongOthersThatMayComeAreMissed) {
  const auto outcomes = outcomes_of_threads(spec(), [](Rank& rank) {
    if (rank.rank() == 0) {
      std::int32_t own = 0, others = 0;
      const Work works[] = {rank.backend().receive(message(&own, 1, DType::kInt32, 0, 2)),
                            rank.backend().receive(message(&others, 1, DType::kInt32, 1, 2))};
      wait_any(works, std::chrono::seconds(20));
    } else if (rank.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      rank.leave();
    }
  });
  EXPECT_EQ(outcomes[0].kind, "peer lost");
  EXPECT_NE(outcomes[0].text.find("has left the group"), std::string::npos) << outcomes[0].text;
}

TEST_P(LostMessages, AreAbortedWithTheGroup) {
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = outcomes_of_threads(spec(), [](Rank& rank) {
    std::int32_t value = 0;
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(30));
      rank.backend().abort("enough");
    }
    receive(rank, &value, 1, 1 - std::min(rank.rank(), 1), 2);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "peer lost") << outcome.text;
    EXPECT_NE(outcome.text.find("rank 1 aborted the group: enough"), std::string::npos) << outcome.text;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPromptly);
}

TEST_P(Messages, EndWithTheRankThatWaits) {
  run_threads(spec(), [](Rank& rank) {
    std::int32_t value = 0;
    const Work work = rank.backend().receive(message(&value, 1, DType::kInt32, 0, 77));
    rank.barrier();
    rank.leave();
    EXPECT_THROW(work.wait(), PeerLost);
  });
}

// Backends without messages refuse them: see backends_test.cpp.
std::vector<Case> cases_with_messages() {
  std::vector<Case> cases = ring_cases({1, 2, 3, 4, 7});
  cases.push_back({Wire::kRecording, 3});
  for (const Case& alone : alone_cases())
    if (capabilities_of(backend_of(alone.wire)).messages) cases.push_back(alone);
  for (const Case& on_gpus : nccl_cases()) cases.push_back(on_gpus);
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, Messages, ::testing::ValuesIn(cases_with_messages()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Gpu, Messages, ::testing::ValuesIn(gpu_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Mpi, Messages, ::testing::ValuesIn(mpi_cases()), name_of_case);
std::vector<Case> nccl_cases_with_a_peer() {
  std::vector<Case> cases = nccl_cases();
  if (!cases.empty()) cases.erase(cases.begin());
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Nccl, LostMessages, ::testing::ValuesIn(nccl_cases_with_a_peer()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Ring, LostMessages, ::testing::ValuesIn(ring_cases({2, 3, 4, 7})), name_of_case);

}  // namespace
}  // namespace lockstep::testing
