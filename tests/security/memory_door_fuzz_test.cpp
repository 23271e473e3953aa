// Unauthenticated peers of the same user connect to the socket through which the ranks of a machine pass their memory.
// The ranks must still find each other, and share it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <iostream>
#include <thread>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "lockstep/core/error.h"
#include "src/comm/net/unix_connection.h"
#include "src/comm/store/memory_store.h"
#include "tests/security/unauthenticated_peer.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr int kUnauthenticated = 1'000;

std::unique_ptr<Backend> join(int rank, const std::shared_ptr<Store>& store) {
  BackendContext context;
  context.place = {rank, kRanks, rank, kRanks};
  context.store = store;
  context.token = "the job's secret";
  context.transport = "shm";
  context.advertise_address = "127.0.0.1";
  context.timeout = context.store_timeout = 60s;
  return make_backend("host", context);
}

// Connects, usually sends something, and disconnects.
void visit(const std::string& name, Mutator& random) {
  const Fd visitor = connect_to_abstract_name(name, std::chrono::steady_clock::now() + 30s);
  const Bytes noise = random.noise(300);
  if (!random.one_in(5)) send(visitor.get(), noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

TEST(MemoryDoorFuzz, RanksShareMemoryAmongUnauthenticatedPeers) {
  const std::uint64_t seed = fuzz_seed();
  std::cout << "LOCKSTEP_FUZZ_SEED=" << seed << std::endl;
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::string> results(kRanks);
  const auto run = [&](int rank) {
    try {
      const auto backend = join(rank, store);
      std::int64_t value = rank + 1;
      Operation sum;
      sum.signature.sequence = 1;
      sum.signature.kind = OperationKind::kAllReduce;
      sum.signature.count = 1;
      sum.signature.dtype = DType::kInt64;
      sum.send = sum.receive = &value;
      sum.timeout = 30s;
      backend->run(sum);
      results[static_cast<std::size_t>(rank)] = std::string(backend->transport()) + " " + std::to_string(value);
    } catch (const Error& error) {
      results[static_cast<std::size_t>(rank)] = error.what();
    }
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks - 1; ++rank) ranks.emplace_back(run, rank);
  const std::string said = store->get("shm/name/0", 30s);
  const std::string name = said.substr(0, said.find('\n'));
  Mutator random(seed);
  const Fd silent = connect_to_abstract_name(name, std::chrono::steady_clock::now() + 30s);  // stays connected
  for (int i = 0; i < kUnauthenticated; ++i) visit(name, random);
  ranks.emplace_back(run, kRanks - 1);  // after all of them
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(results, ::testing::Each("shm 6"));
}

}  // namespace
}  // namespace lockstep::testing
