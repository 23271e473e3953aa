// A group whose ranks use only IPv6, from the store to the last message.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;

void speak(ProcessGroup& group) {
  const int rank = group.rank();
  EXPECT_EQ(group.backend().transport(), "tcp");
  std::vector<float> values(300'001, static_cast<float>(rank + 1));
  group.all_reduce(std::span(values));
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0.0), 6.0 * 300'001);
  std::vector<std::int32_t> told(1000, rank);
  group.broadcast(told.data(), told.size(), DType::kInt32, 2);
  EXPECT_EQ(told, std::vector<std::int32_t>(1000, 2));
  std::vector<std::int32_t> all(kRanks);
  const std::int32_t mine = 10 * rank;
  group.all_gather(&mine, all.data(), 1, DType::kInt32);
  EXPECT_EQ(all, (std::vector<std::int32_t>{0, 10, 20}));
  std::int32_t message = 0;
  if (rank == 0) group.send(&mine, 1, DType::kInt32, 1, 4);
  if (rank == 1) {
    EXPECT_EQ(group.recv(&message, 1, DType::kInt32, 0, 4), 0);
  }
  group.barrier();
  EXPECT_GT(group.backend().counters().tcp_bytes, 300'001u * 4);
}

TEST(Ipv6, CarriesAWholeGroup) {
  try {
    listen_tcp("::1", 0);
  } catch (const RendezvousError& error) {
    GTEST_SKIP() << "no IPv6 loopback here: " << error.what();
  }
  const StoreServer server({.host = "::1", .token = "secret"});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        const auto store = connect_store(server.endpoint(), "secret", 20s);
        const auto group =
            ProcessGroup::create({rank, kRanks, rank, kRanks}, store, "secret",
                                 {.backend = "host", .transport = "tcp", .timeout = 20s, .store_timeout = 20s}, "::1");
        speak(*group);
      } catch (const Error& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace lockstep
