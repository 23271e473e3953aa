// The verdict of ranks that share a control block: one, whoever writes it.
#include "src/comm/ring/verdict.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace lockstep::ring {
namespace {

using namespace std::chrono_literals;

TEST(SharedVerdict, OfARankThatIsStillWritingCountsForAll) {
  const auto control = std::make_unique<ControlBlock>();
  VerdictRecord& record = control->verdict;
  record.state.store(VerdictRecord::kBeingWritten);
  std::thread writer([&] {
    std::this_thread::sleep_for(5ms);
    record.kind = VerdictKind::kTimeout;
    std::strcpy(record.text, "the writer's");
    record.state.store(VerdictRecord::kWritten);
  });
  SharedVerdict mine(*control);
  mine.declare(VerdictKind::kPeerLost, "mine");
  EXPECT_EQ(mine.get().text, "the writer's");
  writer.join();
}

TEST(SharedVerdict, OfARankThatDiedAsItWroteCountsForNobody) {
  const auto control = std::make_unique<ControlBlock>();
  control->verdict.state.store(VerdictRecord::kBeingWritten);
  SharedVerdict mine(*control);
  mine.declare(VerdictKind::kPeerLost, "mine");
  EXPECT_TRUE(mine.stands());
  EXPECT_EQ(mine.get().text, "mine");
}

}  // namespace
}  // namespace lockstep::ring
