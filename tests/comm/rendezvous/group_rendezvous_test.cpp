// Ranks that are lost, or give up, while a group is being made: the others notice at once, and name the right rank.
// Also the keys that a group leaves in the store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/comm/backend_context.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "src/comm/host/machine/node_rendezvous.h"
#include "src/comm/host/wire/tcp_mesh.h"
#include "src/comm/net/socket.h"
#include "src/comm/rendezvous/group_rendezvous.h"
#include "src/comm/store/memory_store.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRegisteringRanks = 4;
constexpr auto kTimeout = 100s;  // no test should need it
constexpr auto kSoon = 40s;      // at once, on a machine with much other work

std::shared_ptr<Store> connect(const Endpoint& endpoint) { return connect_store(endpoint, "secret", kTimeout); }
Place place_of(int rank) { return {rank, kRegisteringRanks, rank, kRegisteringRanks}; }

// Returns the error of a rank that makes the group.
std::future<std::string> join(const Endpoint& endpoint, int rank, const std::string& transport) {
  return std::async(std::launch::async, [=] {
    return message_of([&] {
      ProcessGroup::create(place_of(rank), connect(endpoint), "secret",
                           {.backend = "host", .transport = transport, .timeout = kTimeout, .store_timeout = kTimeout});
    });
  });
}

// Registers as the others do, and leaves as soon as all have registered; `last_act` runs before its connection ends.
void register_and_leave(
    const Endpoint& endpoint, int rank, const std::function<void(Store&)>& last_act = [](Store&) {}) {
  const auto store = connect(endpoint);
  const auto rendezvous = scoped(store, "rendezvous/");
  register_rank(place_of(rank), *rendezvous, kTimeout);
  last_act(*rendezvous);
}

struct Loss {
  int rank;
  const char* transport;
};
class LostWhileJoining : public ::testing::TestWithParam<Loss> {};

TEST_P(LostWhileJoining, IsNamedByAllOthersAtOnce) {
  const auto [lost, transport] = GetParam();
  StoreServer server({.token = "secret"});
  std::vector<std::future<std::string>> others;
  for (int rank = 0; rank < kRegisteringRanks; ++rank)
    if (rank != lost) others.push_back(join(server.endpoint(), rank, transport));
  register_and_leave(server.endpoint(), lost);
  for (auto& other : others) {
    ASSERT_EQ(other.wait_for(kSoon), std::future_status::ready) << "it waits for rank " << lost;
    EXPECT_THAT(other.get(), AllOf(HasSubstr(fmt::format("rank {} (process ", lost)), HasSubstr("has exited")));
  }
}

INSTANTIATE_TEST_SUITE_P(Ring, LostWhileJoining,
                         ::testing::Values(Loss{1, "shm"}, Loss{3, "shm"}, Loss{1, "tcp"}, Loss{3, "tcp"}),
                         [](const auto& tested) {
                           return fmt::format("{}_{}", tested.param.transport, tested.param.rank);
                         });

class RankZeroLost : public ::testing::TestWithParam<const char*> {};

// The store, which rank 0 hosts, ends with it.
TEST_P(RankZeroLost, LeavesTheOthersBlamingNobodyElse) {
  auto server = std::make_unique<StoreServer>(StoreServerOptions{.token = "secret"});
  const Endpoint endpoint = server->endpoint();
  std::vector<std::future<std::string>> others;
  for (int rank = 1; rank < kRegisteringRanks; ++rank) others.push_back(join(endpoint, rank, GetParam()));
  register_and_leave(endpoint, 0, [&](Store&) { server.reset(); });
  for (auto& other : others) {
    ASSERT_EQ(other.wait_for(kSoon), std::future_status::ready);
    EXPECT_THAT(other.get(), AllOf(HasSubstr("the process that hosts the store, rank 0 or lockrun, has ended"),
                                   Not(HasSubstr("gave up"))));
  }
}

INSTANTIATE_TEST_SUITE_P(Ring, RankZeroLost, ::testing::Values("shm", "tcp"));

// -- later, when ranks wait for each other's connections: the store does not show then that one is missing

BackendContext context_of(int rank, std::shared_ptr<Store> store) {
  BackendContext context;
  context.place = place_of(rank);
  context.store = std::move(store);
  context.token = "secret";
  context.advertise_address = "127.0.0.1";
  context.timeout = context.store_timeout = kTimeout;
  return context;
}

// Returns the errors of the ranks from `first` on, except the last, which register and then call `find_each_other`.
std::vector<std::future<std::string>> meet_without_the_last(
    const Endpoint& endpoint, int first, const std::function<void(const BackendContext&)>& find_each_other) {
  std::vector<std::future<std::string>> others;
  for (int rank = first; rank < first + kRegisteringRanks - 1; ++rank)
    others.push_back(std::async(std::launch::async, [=] {
      const auto store = connect(endpoint);
      return message_of([&] {
        register_rank(place_of(rank), *store, kTimeout);
        find_each_other(context_of(rank, store));
      });
    }));
  return others;
}

void expect_all(std::vector<std::future<std::string>>& others, const ::testing::Matcher<std::string>& matcher) {
  for (auto& other : others) {
    ASSERT_EQ(other.wait_for(kSoon), std::future_status::ready);
    EXPECT_THAT(other.get(), matcher);
  }
}

TEST(LostLater, WhileOthersWaitForItsConnections) {
  const StoreServer server({.token = "secret"});
  auto others = meet_without_the_last(server.endpoint(), 0,
                                      [](const BackendContext& context) { host::connect_mesh(context, "mesh"); });
  register_rank(place_of(3), *connect(server.endpoint()), kTimeout);
  expect_all(others, AllOf(HasSubstr("rank 3 (process "), HasSubstr("has exited")));
}

TEST(LostLater, WhileItsNodesFirstRankWaitsForIt) {
  const StoreServer server({.token = "secret"});
  auto others =
      meet_without_the_last(server.endpoint(), 0, [](const BackendContext& context) { host::find_nodes(context); });
  {
    const auto store = connect(server.endpoint());
    register_rank(place_of(3), *store, kTimeout);
    store->set("shm/name/3", "nobody\n");
    store->set("shm/leaders/3", "0\n");
    store->get("shm/leaders", kTimeout);
  }
  expect_all(others, AllOf(HasSubstr("rank 3 (process "), HasSubstr("has exited")));
}

TEST(LostLater, RankZeroWithTheStoreAndItsConnections) {
  auto server = std::make_unique<StoreServer>(StoreServerOptions{.token = "secret"});
  auto others = meet_without_the_last(server->endpoint(), 1,
                                      [](const BackendContext& context) { host::connect_mesh(context, "mesh"); });
  {
    const Fd door = listen_tcp("127.0.0.1", 0);
    const auto store = connect(server->endpoint());
    register_rank(place_of(0), *store, kTimeout);
    store->set("mesh/address/0", host::to_text({"127.0.0.1", local_endpoint(door.get()).port, 1}));
    store->get("mesh/address/3", kTimeout);
    server.reset();
  }
  expect_all(others, AllOf(HasSubstr("the process that hosts the store, rank 0 or lockrun, has ended"),
                           Not(HasSubstr("gave up"))));
}

TEST(Joining, WhoGivesUpTellsTheOthersWhy) {
  for (const char* transport : {"shm", "tcp"}) {
    StoreServer server({.token = "secret"});
    std::vector<std::future<std::string>> others;
    for (int rank = 0; rank < kRegisteringRanks; ++rank)
      if (rank != 3) others.push_back(join(server.endpoint(), rank, transport));
    register_and_leave(server.endpoint(), 3, [](Store& store) { give_up(place_of(3), store, "its disk is full"); });
    for (auto& other : others) {
      ASSERT_EQ(other.wait_for(kSoon), std::future_status::ready);
      EXPECT_THAT(other.get(), AllOf(HasSubstr("rank 3 (process "), HasSubstr("gave up: its disk is full")));
    }
  }
}

// Its predecessor has exited, and not all ranks have arrived yet.
TEST(Joining, ARankThatIsStartedAgainTakesItsPlace) {
  const StoreServer server({.token = "secret"});
  {
    const auto store = connect(server.endpoint());
    EXPECT_THAT(message_of([&] {
                  register_rank({1, 2, 0, 1}, *store, 100ms);
                }),
                HasSubstr("rank 0 of 2 did not arrive within 0.1 s"));
  }
  auto zero = std::async(std::launch::async, [&] {
    register_rank({0, 2, 0, 1}, *connect(server.endpoint()), kTimeout);
  });
  register_rank({1, 2, 0, 1}, *connect(server.endpoint()), kTimeout);
  ASSERT_EQ(zero.wait_for(kSoon), std::future_status::ready);
  zero.get();
}

TEST(Joining, ARankThatIsNotStartedAgainIsNamedByThoseWhoWait) {
  const StoreServer server({.token = "secret"});
  auto zero = std::async(std::launch::async, [&] {
    return message_of([&] { register_rank({0, 3, 0, 1}, *connect(server.endpoint()), kTimeout); });
  });
  const auto watching = connect(server.endpoint());
  watching->get("rank/0", kTimeout);
  {
    const auto store = connect(server.endpoint());
    EXPECT_THAT(message_of([&] {
                  register_rank({1, 3, 0, 1}, *store, 100ms);
                }),
                HasSubstr("did not arrive within 0.1 s"));
  }
  ASSERT_EQ(zero.wait_for(kSoon), std::future_status::ready) << "it waits for rank 2 until the timeout";
  EXPECT_THAT(zero.get(),
              AllOf(HasSubstr("rank 1 (process "), HasSubstr("gave up: rank 1: rank 2 of 3 did not arrive")));
}

// Its process, and so its connection, may live on.
TEST(Joining, ARankThatGivesUpWhileItWaitsTellsTheOthersWhy) {
  const StoreServer server({.token = "secret"});
  const auto store = connect(server.endpoint());
  EXPECT_THAT(message_of([&] {
                register_rank({1, 3, 0, 1}, *store, 100ms);
              }),
              HasSubstr("ranks 0, 2 of 3 did not arrive"));
  auto zero = std::async(std::launch::async, [&] {
    return message_of([&] { register_rank({0, 3, 0, 1}, *connect(server.endpoint()), kTimeout); });
  });
  ASSERT_EQ(zero.wait_for(kSoon), std::future_status::ready);
  EXPECT_THAT(zero.get(),
              AllOf(HasSubstr("rank 1 (process "), HasSubstr("gave up: rank 1: ranks 0, 2 of 3 did not arrive"),
                    Not(HasSubstr("expects 0 ranks"))));
}

// A process may make and destroy groups for as long as it lives.
TEST(Joining, GroupsLeaveNothingInTheStore) {
  const auto store = std::make_shared<MemoryStore>();
  const auto run = [&](int rank, const char* transport) {
    const auto all = ProcessGroup::create(
        {rank, 2, rank, 2}, scoped(store, transport), "secret",
        {.backend = "host", .transport = transport, .timeout = kTimeout, .store_timeout = kTimeout});
    for (int i = 0; i < 20; ++i) all->split(0)->barrier();
    all->split(rank);
    all->barrier();
  };
  for (const char* transport : {"shm", "tcp"}) {
    std::thread other(run, 1, transport);
    run(0, transport);
    other.join();
    EXPECT_EQ(store->keys(), 0u) << transport;
  }
}

}  // namespace
}  // namespace lockstep
