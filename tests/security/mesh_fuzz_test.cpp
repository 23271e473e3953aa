// Unauthenticated peers connect to ranks that are making their connections, and send noise, and real greetings that are
// mutated, cut, repeated, replayed and slow. The ranks must still find each other, and accept no one else.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <iostream>
#include <mutex>
#include <thread>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "lockstep/core/error.h"
#include "src/comm/host/wire/tcp_mesh.h"
#include "src/comm/net/socket.h"
#include "src/comm/store/memory_store.h"
#include "tests/security/unauthenticated_peer.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kMessages = 10'000;
constexpr std::size_t kDrippers = 6;

// Records the addresses at which the ranks listen.
class OpenStore : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    {
      const std::lock_guard lock(mutex_);
      said_.emplace_back(key, value);
    }
    store_.set(key, value);
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override { return store_.get(key, timeout); }
  std::int64_t add(std::string_view key, std::int64_t amount) override { return store_.add(key, amount); }
  std::string set_if_absent(std::string_view key, std::string_view value) override {
    return store_.set_if_absent(key, value);
  }
  void erase_below(std::string_view prefix) override { store_.erase_below(prefix); }

  struct Address {
    std::string key, value;
    std::uint16_t port;
  };
  // In the order in which they were published.
  std::vector<Address> addresses() const {
    const std::lock_guard lock(mutex_);
    std::vector<Address> found;
    constexpr const char* kPort = R"(127\.0\.0\.1[ :](\d{4,5})\b)";
    for (const auto& [key, value] : said_) {
      if (const auto match = find_match(value, kPort); !match.empty())
        found.push_back({key, value, static_cast<std::uint16_t>(std::stoi(match[1]))});
    }
    return found;
  }

 private:
  MemoryStore store_;
  mutable std::mutex mutex_;
  std::vector<std::pair<std::string, std::string>> said_;
};

BackendContext context_of(int rank, int ranks, std::shared_ptr<Store> store, std::chrono::milliseconds timeout = 240s) {
  return {.place = {rank, ranks, rank, ranks},
          .store = std::move(store),
          .token = "the job's secret",
          .transport = "tcp",
          .advertise_address = "127.0.0.1",
          .timeout = timeout,
          .store_timeout = timeout};
}

// The first message that rank 1 sends to a process that it takes for rank 0.
Bytes greeting_of_a_rank() {
  const auto model = std::make_shared<OpenStore>();
  {
    std::thread other([&] { host::connect_mesh(context_of(1, 2, model), "mesh"); });
    host::connect_mesh(context_of(0, 2, model), "mesh");
    other.join();
  }
  const OpenStore::Address address = model->addresses().at(0);  // rank 0's, or another rank's of the same form
  const Fd listener = listen_tcp("127.0.0.1", 0);
  const auto false_store = std::make_shared<OpenStore>();
  const std::string port = std::to_string(local_endpoint(listener.get()).port);
  const std::string value = replace_matches(address.value, std::to_string(address.port), port);
  std::string key = address.key;
  key.back() = '0';
  false_store->set(key, value);
  std::thread deceived([&] { EXPECT_THROW(host::connect_mesh(context_of(1, 2, false_store, 3s), "mesh"), Error); });
  Bytes greeting(4096);
  pollfd item{listener.get(), POLLIN, 0};
  if (poll(&item, 1, 3000) == 1) {
    const Fd rank(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const ssize_t got = recv(rank.get(), greeting.data(), greeting.size(), 0);
    greeting.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  } else {
    greeting.clear();
  }
  deceived.join();
  return greeting;
}

void attack(std::uint16_t port, const Bytes& greeting, Mutator& random, std::vector<UnauthenticatedPeer>& drippers) {
  UnauthenticatedPeer unauthenticated(port);
  if (!unauthenticated) return;
  Bytes message = random.one_in(4) ? random.noise(300) : random.mutated(greeting);
  if (random.one_in(8)) message = greeting;  // a replay: it receives only a challenge that it cannot answer
  if (drippers.size() < kDrippers && random.one_in(100)) {
    message.resize(std::min<std::size_t>(message.size(), 5));
    unauthenticated.drip(message);
    drippers.push_back(std::move(unauthenticated));
    return;
  }
  unauthenticated.say(message);
  if (random.one_in(4)) unauthenticated.say(random.noise(200));
}

TEST(MeshFuzz, RanksFindEachOtherAmongUnauthenticatedPeers) {
  const std::uint64_t seed = fuzz_seed();
  std::cout << "LOCKSTEP_FUZZ_SEED=" << seed << std::endl;
  const Bytes greeting = greeting_of_a_rank();
  ASSERT_GT(greeting.size(), 32u);
  constexpr int kRanks = 3;
  const auto store = std::make_shared<OpenStore>();
  std::vector<std::vector<host::TcpPeer>> peers(kRanks);
  const auto join = [&](int rank) {
    try {
      peers[static_cast<std::size_t>(rank)] = host::connect_mesh(context_of(rank, kRanks, store), "mesh");
    } catch (const Error& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
    }
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks - 1; ++rank) ranks.emplace_back(join, rank);
  for (int i = 0; i < 2000 && store->addresses().empty(); ++i) std::this_thread::sleep_for(5ms);
  Mutator random(seed);
  std::vector<UnauthenticatedPeer> drippers;
  for (int i = 0; i < kMessages; ++i) {
    const auto doors = store->addresses();
    ASSERT_FALSE(doors.empty());
    attack(doors[random.below(doors.size())].port, greeting, random, drippers);
  }
  ranks.emplace_back(join, kRanks - 1);  // the last one joins while the slow peers are still connected
  for (std::thread& rank : ranks) rank.join();
  if (HasFailure()) return;  // a missing rank has no connections
  for (int a = 0; a < kRanks; ++a)
    for (int b = 0; b < kRanks; ++b) {
      if (a == b) continue;
      const char said = static_cast<char>('0' + a * kRanks + b);
      char received = 0;
      ASSERT_EQ(
          send(peers[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)].socket.get(), &said, 1, MSG_NOSIGNAL),
          1);
      pollfd item{peers[static_cast<std::size_t>(b)][static_cast<std::size_t>(a)].socket.get(), POLLIN, 0};
      ASSERT_EQ(poll(&item, 1, 5000), 1);
      ASSERT_EQ(recv(peers[static_cast<std::size_t>(b)][static_cast<std::size_t>(a)].socket.get(), &received, 1, 0), 1);
      EXPECT_EQ(received, said);
    }
}

}  // namespace
}  // namespace lockstep::testing
