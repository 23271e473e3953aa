// Faulty sinks of a program must not disturb the log.
#include "lockstep/core/log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>

namespace lockstep {
namespace {

class LogSink : public ::testing::Test {
 protected:
  ~LogSink() override { log::set_sink({}); }
};

TEST_F(LogSink, ThatLogsItselfDoesNotWaitForItself) {
  int calls = 0;
  log::set_sink([&](log::Level, const std::string&) {
    ++calls;
    log::warn("a line of the sink");
  });
  log::warn("a line");
  EXPECT_EQ(calls, 1);
}

TEST_F(LogSink, ThatThrowsIsNotNoticedByWhoLogs) {
  int calls = 0;
  log::set_sink([&](log::Level, const std::string&) {
    ++calls;
    throw std::runtime_error("the sink is full");
  });
  EXPECT_NO_THROW(log::warn("a line"));
  EXPECT_NO_THROW(log::warn("another line"));
  EXPECT_EQ(calls, 2);
}

TEST_F(LogSink, MayEndItself) {
  const auto mark = std::make_shared<int>(7);
  int seen = 0;
  log::set_sink([&seen, mark](log::Level, const std::string&) {
    log::set_sink({});
    seen = *mark;  // its captures are still alive
  });
  log::warn("a line");
  log::warn("a line that nobody receives");
  EXPECT_EQ(seen, 7);
  EXPECT_EQ(mark.use_count(), 1);
}

TEST_F(LogSink, IsOverOnceAnotherIsSet) {
  std::promise<void> begun, go_on;
  bool is_over = false;
  log::set_sink([&](log::Level, const std::string&) {
    begun.set_value();
    go_on.get_future().wait_for(std::chrono::seconds(20));
    is_over = true;
  });
  const auto logging = std::async(std::launch::async, [] { log::warn("a line"); });
  begun.get_future().wait();
  const auto ending = std::async(std::launch::async, [&] {
    log::set_sink({});
    EXPECT_TRUE(is_over);
  });
  go_on.set_value();
  ending.wait();
  logging.wait();
}

}  // namespace
}  // namespace lockstep
