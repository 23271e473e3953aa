// Resolving names with an unresponsive name server. This file replaces the C library's getaddrinfo().
#include "src/comm/net/resolve.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/error.h"
#include "src/comm/net/interface.h"
#include "tests/support/message_of.h"
#include "tests/support/system_finds.h"

namespace {

constexpr const char* kSlowHost = "silent.name.server.invalid";
// Loopback, after more seconds than a single address may take.
constexpr const char* kLateHost = "late.name.server.invalid";

// Blocks requests for kSlowHost until the test releases them.
class SilentServer {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !is_silent_; });
    --asked_;
    changed_.notify_all();
  }
  void be_silent() {
    const std::lock_guard lock(mutex_);
    is_silent_ = true;
  }
  // Waits until no request is blocked.
  void answer() {
    std::unique_lock lock(mutex_);
    is_silent_ = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return asked_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_silent_ = false;
  int asked_ = 0;
};

SilentServer& silent_server() {
  static auto& server = *new SilentServer;
  return server;
}

}  // namespace

extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** result) {
  const bool is_name = hints == nullptr || (hints->ai_flags & AI_NUMERICHOST) == 0;
  if (host != nullptr && is_name && std::strcmp(host, kSlowHost) == 0) silent_server().wait();
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || !is_name || std::strcmp(host, kLateHost) != 0) return real(host, service, hints, result);
  std::this_thread::sleep_for(std::chrono::milliseconds(5500));
  return real("127.0.0.1", service, hints, result);
}

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns the error of `attempt` while the name server is silent; the test fails if it waits for the answer.
std::string message_under_silence(const std::function<void()>& attempt) {
  silent_server().be_silent();
  auto message = std::async(std::launch::async, [&] { return message_of(attempt); });
  EXPECT_EQ(message.wait_for(20s), std::future_status::ready) << "it waits for the name server";
  silent_server().answer();
  return message.get();
}

TEST(Resolve, TheStoresTimeoutHoldsUnderASilentNameServer) {
  EXPECT_THAT(message_under_silence([] {
                connect_store({kSlowHost, 1}, "secret", 300ms);
              }),
              AllOf(HasSubstr("no answer within 0.3 s"), HasSubstr("the name server did not answer in time")));
  EXPECT_THAT(message_under_silence([] { address_towards(kSlowHost, 1, std::chrono::steady_clock::now() + 300ms); }),
              HasSubstr("does not resolve (the name server did not answer in time)"));
}

// An attempt that ends at the deadline gives no new reason: that of the last complete attempt is kept.
TEST(Resolve, ARefusedConnectionIsNotBlamedOnTheNameServer) {
  if (!testing::system_finds("localhost")) GTEST_SKIP() << "this system does not know localhost";
  std::string why;
  EXPECT_FALSE(try_connect_tcp("localhost", 1, std::chrono::steady_clock::now() + 20s, why));
  EXPECT_THAT(why, HasSubstr("Connection refused"));
  EXPECT_FALSE(try_connect_tcp("localhost", 1, std::chrono::steady_clock::now() - 1s, why));
  EXPECT_THAT(why, HasSubstr("Connection refused"));
}

TEST(Resolve, TheStoresTimeoutIsForANameServerThatIsSlow) {
  const StoreServer server({.token = "secret"});
  const auto store = connect_store({kLateHost, server.endpoint().port}, "secret", 40s);
  EXPECT_EQ(store->add("served", 1), 1);
}

TEST(Resolve, RankZeroWaitsNoLongerForItsOwnName) {
  JobEnvironment job;
  job.kind = JobEnvironment::Kind::kAddress;
  job.place = {0, 2, 0, 2};
  job.master_host = kSlowHost;
  job.master_port = 1;
  job.token = "secret";
  EXPECT_THAT(message_under_silence([&] { rendezvous(job, 300ms); }),
              AllOf(HasSubstr("did not resolve within 0.3 s"), HasSubstr("the name server did not answer in time")));
}

TEST(Resolve, NumbersAndNamesAreFound) {
  std::string why;
  for (const char* host : {"127.0.0.1", "localhost"}) {
    if (!testing::system_finds(host)) continue;
    const Addresses found = resolve(host, 80, 0, std::chrono::steady_clock::now() + 20s, why);
    ASSERT_TRUE(found) << why;
  }
  EXPECT_FALSE(resolve("localhost", 80, AI_NUMERICHOST, std::chrono::steady_clock::now() + 20s, why));
}

}  // namespace
}  // namespace lockstep
