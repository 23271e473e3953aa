// Which GPUs of a process are connected with which.
#include "src/cuda/peer_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

namespace lockstep::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RecordedPeers : public PeerCalls {
 public:
  explicit RecordedPeers(std::set<std::pair<int, int>> apart = {}) : apart_(std::move(apart)) {}
  bool enable(int device, int peer) override {
    return apart_.count({device, peer}) == 0 && enabled.insert({device, peer}).second;
  }
  void open_pool(int owner, int peer) override { opened.insert({owner, peer}); }

  std::set<std::pair<int, int>> enabled, opened;

 private:
  std::set<std::pair<int, int>> apart_;
};

TEST(PeerAccess, ANewGpuIsConnectedWithEachOtherInBothDirections) {
  RecordedPeers calls;
  EXPECT_THAT(connect_peers(calls, 2, {}), IsEmpty());
  EXPECT_THAT(calls.enabled, IsEmpty()) << "a process with one GPU makes no context on another";
  EXPECT_THAT(connect_peers(calls, 2, {0, 1}), IsEmpty());
  EXPECT_THAT(calls.enabled, ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(2, 0), std::pair(2, 1)));
  EXPECT_THAT(calls.opened, ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(2, 0), std::pair(2, 1)))
      << "each pool is opened for the GPU that addresses it";
}

TEST(PeerAccess, GpusThatTheMachineKeepsApartAreReturned) {
  RecordedPeers calls({{2, 0}, {0, 2}, {1, 2}});
  EXPECT_THAT(connect_peers(calls, 2, {0, 1}), ElementsAre(0, 1));
  EXPECT_THAT(calls.enabled, ElementsAre(std::pair(2, 1)));
  EXPECT_THAT(calls.opened, ElementsAre(std::pair(1, 2)));
}

}  // namespace
}  // namespace lockstep::cuda
