// The store's contents, and the memory that it uses for clients that announce much and send little, or send requests
// without reading the replies.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"
#include "src/comm/store/store_connection.h"
#include "src/comm/store/store_protocol.h"
#include "src/comm/store/store_table.h"
#include "tests/comm/store/store_member.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
constexpr auto kLimitsTime = 20s;
constexpr std::size_t kMiB = std::size_t{1} << 20;

std::string number(std::int64_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }

TEST(StoreTable, KeepsValuesAndCounters) {
  StoreTable table;
  EXPECT_EQ(table.find("key"), nullptr);
  EXPECT_EQ(*table.set("key", "one"), "one");
  EXPECT_EQ(*table.set("key", "three"), "three");
  EXPECT_EQ(*table.set_if_absent("key", "four"), "three");
  EXPECT_EQ(*table.set_if_absent("other", ""), "");
  EXPECT_EQ(**table.add("counter", number(5)), number(5));
  EXPECT_EQ(**table.add("counter", number(-7)), number(-2));
  EXPECT_FALSE(table.add("key", number(1)).has_value()) << "the key's value is not a counter";
  EXPECT_FALSE(table.add("counter", "1").has_value()) << "the amount is not a number";
  EXPECT_EQ(table.keys(), 3u);
  EXPECT_EQ(table.bytes(), 5 + 0 + 8u);
}

TEST(StoreTable, EndsAtItsLimits) {
  StoreTable table({.keys = 2, .bytes = 100});
  EXPECT_NE(table.set("a", std::string(60, 'x')), nullptr);
  EXPECT_EQ(table.set("b", std::string(41, 'x')), nullptr) << "101 bytes";
  EXPECT_NE(table.set("a", std::string(100, 'y')), nullptr) << "the first value makes room";
  EXPECT_NE(table.set("a", std::string(10, 'z')), nullptr);
  EXPECT_NE(table.set("b", ""), nullptr);
  EXPECT_EQ(table.set("c", ""), nullptr) << "a third key";
  EXPECT_EQ(*table.find("a"), std::string(10, 'z')) << "the refused value changed nothing";
}

TEST(StoreTable, CountsWhatSlowReadersStillHold) {
  StoreTable table({.keys = 10, .bytes = 100});
  const auto held = table.set("a", std::string(60, 'x'));
  EXPECT_EQ(table.set("a", std::string(60, 'y')), nullptr) << "60 are on their way, 60 are new";
  EXPECT_NE(table.set("a", std::string(40, 'y')), nullptr);
  EXPECT_EQ(table.bytes(), 100u);
}

double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  statm >> all >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / static_cast<double>(kMiB);
}

void say(const Fd& fd, store_protocol::Request request, const std::string& key, std::size_t value_bytes) {
  const store_protocol::RequestHeader header{request, static_cast<std::uint32_t>(key.size()),
                                             static_cast<std::uint32_t>(value_bytes), 20'000};
  const std::string text = std::string(reinterpret_cast<const char*>(&header), sizeof header) + key;
  send_all(fd.get(), std::as_bytes(std::span(text)), std::chrono::steady_clock::now() + kLimitsTime);
}

// A hundred clients announce 8 MiB each, and send half of it, as far as it is accepted.
TEST(StoreServer, BoundsWhatUnfinishedRequestsTake) {
  const StoreServer server({.token = "t"});
  const auto good = connect_store(server.endpoint(), "t", kLimitsTime);
  const double before = resident_mib();
  const std::string half(4 * kMiB, 'x');
  std::vector<Fd> drippers;
  for (int i = 0; i < 100; ++i) {
    drippers.push_back(connect_as_member(server.endpoint(), std::chrono::steady_clock::now() + kLimitsTime));
    say(drippers.back(), store_protocol::Request::kSet, "key", 8 * kMiB);
    send(drippers.back().get(), half.data(), half.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  for (int i = 0; i < 50; ++i) EXPECT_EQ(good->add("served", 1), i + 1) << "small requests pass them by";
  EXPECT_LT(resident_mib() - before, 200) << "all halves would be 400";
  const auto another = connect_store(server.endpoint(), "t", kLimitsTime);
  auto large = std::async(std::launch::async, [&] { another->set("large", std::string(8 * kMiB, 'y')); });
  EXPECT_EQ(large.wait_for(100ms), std::future_status::timeout) << "there is no room for it yet";
  drippers.clear();
  large.get();
  EXPECT_EQ(good->get("large", kLimitsTime), std::string(8 * kMiB, 'y'));
}

TEST(StoreServer, KeepsOneCopyForAllWhoReadSlowly) {
  const StoreServer server({.token = "t"});
  const auto good = connect_store(server.endpoint(), "t", kLimitsTime);
  std::vector<Fd> readers;
  for (int i = 0; i < 50; ++i) {
    readers.push_back(connect_as_member(server.endpoint(), std::chrono::steady_clock::now() + kLimitsTime));
    say(readers.back(), store_protocol::Request::kGet, "later", 0);
  }
  for (int i = 0; i < 20; ++i) good->add("turns", 1);  // the server has received their requests by now
  const double before = resident_mib();
  good->set("later", std::string(8 * kMiB, 'x'));
  EXPECT_EQ(good->add("turns", 1), 21) << "nobody waits for them";
  EXPECT_LT(resident_mib() - before, 150) << "fifty copies would be 400";
  good->set("later", "new");
  std::vector<std::byte> answer(sizeof(store_protocol::ReplyHeader) + 8 * kMiB);
  ASSERT_EQ(receive_all(readers[7].get(), answer, std::chrono::steady_clock::now() + kLimitsTime), IoResult::kDone);
  EXPECT_EQ(answer.back(), std::byte{'x'}) << "what stood when it was answered";
}

TEST(StoreServer, WakesAllWhoWaitForAKeyAndNoneWhoWaitForAnother) {
  const StoreServer server({.token = "t"});
  const auto good = connect_store(server.endpoint(), "t", kLimitsTime);
  std::vector<Fd> waiting;
  for (int i = 0; i < 300; ++i) {
    waiting.push_back(connect_as_member(server.endpoint(), std::chrono::steady_clock::now() + kLimitsTime));
    say(waiting.back(), store_protocol::Request::kGet, i % 3 == 0 ? "other" : "key", 0);
  }
  waiting[1].reset();  // who is gone is not missed
  good->set("key", "now");
  store_protocol::ReplyHeader header;
  std::byte value[3];
  const Deadline deadline = std::chrono::steady_clock::now() + kLimitsTime;
  for (std::size_t i = 2; i < waiting.size(); ++i) {
    if (i % 3 == 0) {
      EXPECT_EQ(recv(waiting[i].get(), value, 1, MSG_DONTWAIT), -1);
      continue;
    }
    ASSERT_EQ(receive_all(waiting[i].get(), std::as_writable_bytes(std::span(&header, 1)), deadline), IoResult::kDone);
    ASSERT_EQ(receive_all(waiting[i].get(), value, deadline), IoResult::kDone);
    EXPECT_EQ(header.reply, store_protocol::Reply::kOk);
  }
}

}  // namespace
}  // namespace lockstep
