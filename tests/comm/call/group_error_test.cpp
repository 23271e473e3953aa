// The group error of ranks that share a control block: there is one, whichever rank writes it.
#include "src/comm/call/group_error.h"
#include "src/comm/host/machine/shared_group_error.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace lockstep::host {
namespace {

using namespace std::chrono_literals;

TEST(SharedGroupError, OfARankThatIsStillWritingCountsForAll) {
  const auto control = std::make_unique<ControlBlock>();
  GroupErrorRecord& record = control->group_error;
  record.state.store(GroupErrorRecord::kBeingWritten);
  std::thread writer([&] {
    std::this_thread::sleep_for(5ms);
    record.kind = GroupErrorKind::kTimeout;
    std::strcpy(record.text, "the writer's");
    record.state.store(GroupErrorRecord::kWritten);
  });
  SharedGroupError mine(*control);
  mine.declare(GroupErrorKind::kPeerLost, "mine");
  EXPECT_EQ(mine.get().text, "the writer's");
  writer.join();
}

TEST(SharedGroupError, OfARankThatDiedAsItWroteCountsForNobody) {
  const auto control = std::make_unique<ControlBlock>();
  control->group_error.state.store(GroupErrorRecord::kBeingWritten);
  SharedGroupError mine(*control);
  mine.declare(GroupErrorKind::kPeerLost, "mine");
  EXPECT_TRUE(mine.stands());
  EXPECT_EQ(mine.get().text, "mine");
}

}  // namespace
}  // namespace lockstep::host
