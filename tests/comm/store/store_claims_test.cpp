// Keys of the store that belong to a connection: whether their owners exist.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <thread>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"
#include "src/comm/store/store_protocol.h"
#include "tests/comm/store/store_member.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
constexpr auto kClaimsTime = 20s;

// Returns the text of the abandoned claim that ended the wait; "" if none did.
std::string abandoned_while(const std::function<void()>& wait) {
  try {
    wait();
    return "";
  } catch (const ClaimAbandoned& gone) {
    return gone.what();
  }
}

TEST(StoreClaims, AClaimEndsWithItsConnection) {
  const StoreServer server({.token = "secret"});
  const auto connect = [&] { return connect_store(server.endpoint(), "secret", kClaimsTime); };
  const auto other = connect();
  auto owner = connect();
  EXPECT_EQ(owner->claim("rank/1", "first"), "first");
  EXPECT_EQ(other->claim("rank/1", "second"), "first") << "its owner is there";
  other->check_claims("rank/", kClaimsTime);
  auto waiting = std::async(std::launch::async, [&] {
    return abandoned_while([&] { connect()->get_while("rank/", "later", kClaimsTime); });
  });
  std::this_thread::sleep_for(50ms);
  owner.reset();
  EXPECT_EQ(waiting.get(), "first");
  EXPECT_EQ(abandoned_while([&] { other->get_while("rank/", "later", kClaimsTime); }), "first")
      << "who asks afterwards";
  EXPECT_EQ(abandoned_while([&] { other->check_claims("rank/", kClaimsTime); }), "first");
  EXPECT_EQ(abandoned_while([&] { other->get_while("rank/", "rank/1", kClaimsTime); }), "first")
      << "though the key is there";
  other->set("there", "value");
  EXPECT_EQ(other->get_while("rank/", "there", kClaimsTime), "value") << "a key that is there needs nobody";
  EXPECT_THROW(other->get_while("other/", "later", 20ms), TimeoutError);
  EXPECT_EQ(other->claim("rank/1", "second"), "second");
  EXPECT_THROW(other->get_while("rank/", "later", 20ms), TimeoutError) << "somebody has taken its place";
}

TEST(StoreClaims, AClaimIsKeptOrGivenUpWithAReason) {
  const StoreServer server({.token = "secret"});
  const auto connect = [&] { return connect_store(server.endpoint(), "secret", kClaimsTime); };
  const auto store = connect();
  auto first = connect(), second = connect(), third = connect();
  first->claim("rank/1", "1");
  second->claim("rank/2", "2");
  third->claim("rank/3", "3");
  first->keep("rank/1");
  first.reset();
  store->check_claims("rank/", kClaimsTime);
  EXPECT_EQ(store->claim("rank/1", "another"), "1") << "it is a key like others";
  EXPECT_THROW(store->abandon("rank/2", "no business of mine"), RendezvousError);
  second->abandon("rank/2", "no room");
  third.reset();
  EXPECT_EQ(abandoned_while([&] { store->check_claims("rank/", kClaimsTime); }), "no room")
      << "the first one, whatever became of the others";
  store->erase_below("rank/");
  store->check_claims("rank/", kClaimsTime);
}

// It inherits its parent's descriptors, and must keep none of them open.
TEST(StoreClaims, AForkedChildHoldsNoConnectionAndNoServer) {
  auto server = std::make_unique<StoreServer>(StoreServerOptions{.token = "secret"});
  const Endpoint at = server->endpoint();
  auto owner = connect_store(at, "secret", kClaimsTime), other = connect_store(at, "secret", kClaimsTime);
  owner->claim("rank/1", "first");
  int life[2];
  ASSERT_EQ(pipe(life), 0);
  Fd ours(life[1]), childs(life[0]);
  const pid_t child = fork();
  if (child == 0) {
    ::close(life[1]);
    char end;
    _exit(::read(life[0], &end, 1) < 0 ? 1 : 0);
  }
  owner.reset();
  EXPECT_EQ(abandoned_while([&] { other->get_while("rank/", "later", kClaimsTime); }), "first");
  server.reset();
  EXPECT_THROW(other->set("key", "value"), RendezvousError);
  listen_tcp(at.host, at.port);
  ours.reset();
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

// The server's end of a connection, in this process.
int far_end_of(const Fd& near) {
  const std::string here = local_endpoint(near.get()).text();
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  for (int fd = 0; fd < static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 4096)); ++fd)
    if (peer_endpoint(fd).text() == here) return fd;
  return -1;
}

// Returns how long, in ms, the peer's kernel may be silent before the connection ends; 0: forever.
int silence_allowed(int fd) {
  int alive = 0, unacknowledged = 0;
  socklen_t size = sizeof alive;
  EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &size), 0);
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged, &size), 0);
  EXPECT_EQ(alive != 0, unacknowledged != 0) << "while data is under way no keepalive is sent";
  return unacknowledged;
}

// A job's later groups meet over the connection of its first: a network failure of some seconds must not have ended it
// meanwhile.
TEST(StoreClaims, AMachineIsWatchedWhileItHasOneAndNotForTheWholeJob) {
  using store_protocol::Request;
  const StoreServer server({.token = "t"});
  const auto deadline = std::chrono::steady_clock::now() + kClaimsTime;
  const Fd member = connect_as_member(server.endpoint(), deadline);
  const int far = far_end_of(member);
  ASSERT_GE(far, 0);
  const auto ask = [&](Request request, const std::string& key) {
    const store_protocol::RequestHeader header{request, static_cast<std::uint32_t>(key.size()), 0, 0};
    const std::string text = std::string(reinterpret_cast<const char*>(&header), sizeof header) + key;
    send_all(member.get(), std::as_bytes(std::span(text)), deadline);
    store_protocol::ReplyHeader reply;
    EXPECT_EQ(receive_all(member.get(), std::as_writable_bytes(std::span(&reply, 1)), deadline), IoResult::kDone);
    EXPECT_EQ(reply.reply, store_protocol::Reply::kOk);
  };
  // All work for the server's previous answer is done before the next one.
  const auto allowed_after = [&](Request request, const std::string& key) {
    ask(request, key);
    ask(Request::kSet, "key");
    return silence_allowed(far);
  };
  EXPECT_EQ(silence_allowed(far), 0);
  EXPECT_EQ(allowed_after(Request::kClaim, "rank/1"), 15'000);
  EXPECT_EQ(allowed_after(Request::kClaim, "other/1"), 15'000);
  EXPECT_EQ(allowed_after(Request::kKeep, "rank/1"), 15'000) << "it has another one";
  EXPECT_EQ(allowed_after(Request::kAbandon, "other/1"), 0);
  EXPECT_EQ(allowed_after(Request::kClaim, "late/1"), 15'000);
  EXPECT_EQ(allowed_after(Request::kEraseBelow, "late/"), 0);
}

}  // namespace
}  // namespace lockstep
