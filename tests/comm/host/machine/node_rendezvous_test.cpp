// Ranks that meet to share memory, and ranks that are missing: stopped or lost after they had registered.
#include "src/comm/host/machine/node_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "src/comm/store/memory_store.h"

namespace lockstep::host {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr int kRendezvousRanks = 4;

// Returns the error of each rank that arrives.
std::vector<std::string> failures_without(const std::vector<int>& missing) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::future<std::string>> coming;
  for (int rank = 0; rank < kRendezvousRanks; ++rank) {
    if (std::count(missing.begin(), missing.end(), rank) > 0) continue;
    coming.push_back(std::async(std::launch::async, [=]() -> std::string {
      BackendContext context;
      context.place = {rank, kRendezvousRanks, rank, kRendezvousRanks};
      context.store = store;
      context.token = "token";
      context.store_timeout = 1s;
      try {
        find_nodes(context);
        return "nothing";
      } catch (const RendezvousError& error) {
        return error.what();
      }
    }));
  }
  std::vector<std::string> failures;
  for (auto& rank : coming) failures.push_back(rank.get());
  return failures;
}

TEST(NodeRendezvous, AllWhoCameNameTheSameRanksThatDidNot) {
  for (const auto& [missing, text] : std::vector<std::pair<std::vector<int>, std::string>>{
           {{3}, "rank 3 of 4 did not arrive within 1 s, though it had registered"},
           {{1, 3}, "ranks 1, 3 of 4 did not arrive within 1 s"},
           {{0}, "rank 0 of 4 did not arrive within 1 s"}}) {
    const auto failures = failures_without(missing);
    ASSERT_EQ(failures.size(), kRendezvousRanks - missing.size());
    for (const std::string& failure : failures) EXPECT_THAT(failure, HasSubstr(text));
  }
}

}  // namespace
}  // namespace lockstep::host
