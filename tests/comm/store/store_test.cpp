// The store over real sockets: its contents, whom it refuses, and what it survives.
#include "lockstep/comm/store.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"
#include "src/comm/store/memory_store.h"
#include "src/comm/store/store_protocol.h"
#include "tests/comm/store/store_member.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
constexpr auto kStoreTime = 20s;

void expect_store_behaviour(Store& a, Store& b) {
  a.set("key", "value");
  EXPECT_EQ(b.get("key", kStoreTime), "value");
  EXPECT_EQ(a.add("counter", 5), 5);
  EXPECT_EQ(b.add("counter", -7), -2);
  EXPECT_EQ(a.set_if_absent("once", "first"), "first");
  EXPECT_EQ(b.set_if_absent("once", "second"), "first");
  const std::string binary("\0\1\n\xff", 4);
  a.set("binary", binary);
  EXPECT_EQ(b.get("binary", kStoreTime), binary);
  a.set("empty", "");
  EXPECT_EQ(b.get("empty", kStoreTime), "");
  auto waiting = std::async(std::launch::async, [&] { return b.get("later", kStoreTime); });
  a.set("later", "now");
  EXPECT_EQ(waiting.get(), "now");
  EXPECT_THROW(a.get("never", 20ms), TimeoutError);
  EXPECT_NE(message_of([&] { a.get("never", 20ms); }).find("'never'"), std::string::npos);
}

TEST(MemoryStore, KeepsAndWaits) {
  MemoryStore store;
  expect_store_behaviour(store, store);
}

// rank/1 and rank/10 have a common prefix.
TEST(TcpStore, ErasesAllKeysBelowAPrefix) {
  const StoreServer server({.token = "secret"});
  const auto tcp = connect_store(server.endpoint(), "secret", kStoreTime);
  for (const auto& store : {tcp, std::shared_ptr<Store>(std::make_shared<MemoryStore>())}) {
    for (const char* key : {"group1/a", "group10/a", "group1"}) store->set(key, "value");
    store->add("group1/count", 3);
    scoped(store, "group1/")->erase_below("");
    for (const char* key : {"group1/a", "group1/count"}) EXPECT_THROW(store->get(key, 0ms), TimeoutError) << key;
    for (const char* key : {"group10/a", "group1"}) EXPECT_EQ(store->get(key, kStoreTime), "value") << key;
    EXPECT_EQ(store->add("group1/count", 1), 1) << "it begins anew";
    EXPECT_THROW(store->erase_below(""), InvalidArgument) << "all keys, others' too";
  }
}

TEST(TcpStore, KeepsAndWaitsForTwoClients) {
  const StoreServer server({.token = "secret"});
  const auto a = connect_store(server.endpoint(), "secret", kStoreTime),
             b = connect_store(server.endpoint(), "secret", kStoreTime);
  expect_store_behaviour(*a, *b);
  const std::string large(5'000'000, 'x');
  a->set("large", large);
  EXPECT_EQ(b->get("large", kStoreTime), large);
  EXPECT_THROW(a->set("key", std::string(store_protocol::kMaxValueBytes + 1, 'x')), InvalidArgument);
  EXPECT_THROW(a->set("", "x"), InvalidArgument);
  EXPECT_THROW(a->set(std::string(513, 'k'), "x"), InvalidArgument);
  EXPECT_EQ(a->get("key", kStoreTime), "value") << "the connection goes on";
}

TEST(TcpStore, ScopesKeepKeysApart) {
  const StoreServer server({.token = "t"});
  const auto store = connect_store(server.endpoint(), "t", kStoreTime);
  const auto one = scoped(store, "one/"), two = scoped(store, "two/");
  one->set("key", "1");
  two->set("key", "2");
  EXPECT_EQ(one->get("key", kStoreTime), "1");
  EXPECT_EQ(store->get("two/key", kStoreTime), "2");
}

TEST(TcpStore, WorksOverIpv6) {
  std::unique_ptr<StoreServer> server;
  try {
    server = std::make_unique<StoreServer>(StoreServerOptions{.host = "::1", .token = "t"});
  } catch (const RendezvousError& error) {
    GTEST_SKIP() << "no IPv6 loopback here: " << error.what();
  }
  EXPECT_EQ(server->endpoint().text().substr(0, 6), "[::1]:");
  connect_store(server->endpoint(), "t", kStoreTime)->set("key", "value");
}

TEST(TcpStore, RefusesAnotherToken) {
  const StoreServer server({.token = "right"});
  for (const char* token : {"wrong", "", "right "}) {
    const std::string message = message_of([&] { connect_store(server.endpoint(), token, kStoreTime); });
    EXPECT_NE(message.find("token was refused"), std::string::npos) << message;
    EXPECT_NE(message.find(server.endpoint().text()), std::string::npos);
    EXPECT_EQ(message.find("right"), std::string::npos) << "the message must not contain the token";
  }
  connect_store(server.endpoint(), "right", kStoreTime);
}

TEST(TcpStore, RefusesToServeTheNetworkWithoutAToken) {
  const std::string message = message_of([] { StoreServer({.host = "0.0.0.0"}); });
  EXPECT_NE(message.find("LOCKSTEP_TOKEN"), std::string::npos) << message;
  EXPECT_NE(message.find("LOCKSTEP_INSECURE=1"), std::string::npos);
  StoreServer({.host = "0.0.0.0", .token = "secret"});
}

TEST(TcpStore, ServesTheNetworkWithoutATokenWhenToldTo) {
  const StoreServer server({.host = "0.0.0.0", .insecure = true});
  EXPECT_EQ(server.endpoint().host, "0.0.0.0");
  const Endpoint reached{"127.0.0.1", server.endpoint().port};
  connect_store(reached, "", kStoreTime)->set("key", "value");
  EXPECT_EQ(connect_store(reached, "", kStoreTime)->get("key", kStoreTime), "value");
  EXPECT_NE(message_of([&] { connect_store(reached, "another job's", kStoreTime); }).find("token was refused"),
            std::string::npos);
}

TEST(TcpStore, SaysWhichAddressDoesNotAnswer) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  const Endpoint silent = local_endpoint(listener.get());
  const std::string message = message_of([&] { connect_store({"127.0.0.1", 1}, "", 100ms); });
  EXPECT_NE(message.find("127.0.0.1:1: no answer"), std::string::npos) << message;
  EXPECT_THROW(connect_store(silent, "", 100ms), RendezvousError) << "something listens but says nothing";
  EXPECT_NE(message_of([&] { listen_tcp("127.0.0.1", silent.port); }).find("holds this port"), std::string::npos);
}

TEST(TcpStore, AClientWhoseServerEndsIsTold) {
  auto server = std::make_unique<StoreServer>(StoreServerOptions{.token = "t"});
  const auto store = connect_store(server->endpoint(), "t", kStoreTime);
  auto waiting = std::async(std::launch::async, [&] { return message_of([&] { store->get("never", kStoreTime); }); });
  std::this_thread::sleep_for(20ms);
  server.reset();
  EXPECT_NE(waiting.get().find("connection was closed"), std::string::npos);
  EXPECT_NE(message_of([&] { store->set("key", "value"); }).find("connection was closed"), std::string::npos);
}

// A client that sends its proof byte by byte, or sends nothing, delays no other.
TEST(TcpStore, SlowHandshakesHoldNobodyUp) {
  const StoreServer server({.token = "t"});
  const auto deadline = std::chrono::steady_clock::now() + kStoreTime;
  std::string why;
  const Fd slow = try_connect_tcp(server.endpoint().host, server.endpoint().port, deadline, why);
  ASSERT_TRUE(slow) << why;
  store_protocol::Hello hello;
  ASSERT_EQ(receive_all(slow.get(), std::as_writable_bytes(std::span(&hello, 1)), deadline), IoResult::kDone);
  store_protocol::ClientProof proof{store_protocol::kMagic, {}, {}};
  proof.proof = prove("t", Role::kStoreClient, proof.client_nonce, hello.server_nonce);
  const auto store = connect_store(server.endpoint(), "t", kStoreTime);
  for (const std::byte& byte : std::as_bytes(std::span(&proof, 1))) {
    ASSERT_EQ(send_all(slow.get(), std::span(&byte, 1), deadline), IoResult::kDone);
    EXPECT_GE(store->add("served", 1), 1);
  }
  store_protocol::ServerProof answer;
  ASSERT_EQ(receive_all(slow.get(), std::as_writable_bytes(std::span(&answer, 1)), deadline), IoResult::kDone);
  EXPECT_EQ(answer.accepted, 1u) << "slow is not wrong";
}

// A proof is bound to the nonces of its connection: an eavesdropper cannot use it again.
TEST(TcpStore, AProofThatWasOverheardIsWorthNothing) {
  const StoreServer server({.token = "t"});
  const auto deadline = std::chrono::steady_clock::now() + kStoreTime;
  store_protocol::ClientProof proof{store_protocol::kMagic, {}, {}};
  for (const bool first : {true, false}) {
    std::string why;
    const Fd fd = try_connect_tcp(server.endpoint().host, server.endpoint().port, deadline, why);
    store_protocol::Hello hello;
    ASSERT_EQ(receive_all(fd.get(), std::as_writable_bytes(std::span(&hello, 1)), deadline), IoResult::kDone);
    if (first) proof.proof = prove("t", Role::kStoreClient, proof.client_nonce, hello.server_nonce);
    send_all(fd.get(), std::as_bytes(std::span(&proof, 1)), deadline);
    store_protocol::ServerProof answer;
    ASSERT_EQ(receive_all(fd.get(), std::as_writable_bytes(std::span(&answer, 1)), deadline), IoResult::kDone);
    EXPECT_EQ(answer.accepted, first ? 1u : 0u);
  }
}

// A server that proves the token, and then sends nothing.
TEST(TcpStore, WhoWasGivenUpOnceIsNotSaidToHaveEnded) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  auto silent = std::async(std::launch::async, [&] {
    pollfd entry{listener.get(), POLLIN, 0};
    poll(&entry, 1, 20'000);
    Fd fd(accept(listener.get(), nullptr, nullptr));
    const auto deadline = std::chrono::steady_clock::now() + kStoreTime;
    const store_protocol::Hello hello{store_protocol::kMagic, {}};
    send_all(fd.get(), std::as_bytes(std::span(&hello, 1)), deadline);
    store_protocol::ClientProof client;
    receive_all(fd.get(), std::as_writable_bytes(std::span(&client, 1)), deadline);
    const store_protocol::ServerProof proof{1, prove("t", Role::kStoreServer, client.client_nonce, hello.server_nonce)};
    send_all(fd.get(), std::as_bytes(std::span(&proof, 1)), deadline);
    return fd;
  });
  const auto store = connect_store(local_endpoint(listener.get()), "t", kStoreTime);
  const Fd far = silent.get();
  EXPECT_NE(message_of([&] { store->check_claims("rank/", 50ms); }).find("no answer about 'rank/'"), std::string::npos);
  const std::string later = message_of([&] { store->set("key", "value"); });
  EXPECT_NE(later.find("'key' was not requested: abandoned earlier, when it did not answer"), std::string::npos)
      << later;
}

// A server that does not know the token is detected: its answer is not a valid proof.
TEST(TcpStore, AnImpostorServerIsRefused) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  auto impostor = std::async(std::launch::async, [&] {
    pollfd entry{listener.get(), POLLIN, 0};
    poll(&entry, 1, 20'000);
    const Fd fd(accept(listener.get(), nullptr, nullptr));
    const auto deadline = std::chrono::steady_clock::now() + kStoreTime;
    const store_protocol::Hello hello{store_protocol::kMagic, {}};
    send_all(fd.get(), std::as_bytes(std::span(&hello, 1)), deadline);
    store_protocol::ClientProof proof;
    receive_all(fd.get(), std::as_writable_bytes(std::span(&proof, 1)), deadline);
    const store_protocol::ServerProof yes{1, proof.proof};  // the client's own proof, sent back
    send_all(fd.get(), std::as_bytes(std::span(&yes, 1)), deadline);
  });
  const std::string message = message_of([&] { connect_store(local_endpoint(listener.get()), "t", kStoreTime); });
  EXPECT_NE(message.find("token was refused"), std::string::npos) << message;
}

// While it exists, this process cannot open descriptors.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const Fd lowest_free(dup(0));
    const rlimit none{static_cast<rlim_t>(lowest_free.get()), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// The system accepts connections for a process that is stopped or cannot accept: the client must not take it for
// another program.
TEST(TcpStore, ASilentListenerIsNotTakenForAnotherProgram) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  const std::string message =
      message_of([&] { connect_store(local_endpoint(listener.get()), "t", std::chrono::milliseconds(1500)); });
  EXPECT_NE(message.find("a process listens there and does not answer"), std::string::npos) << message;
  EXPECT_NE(message.find("too many open files (ulimit -n)"), std::string::npos) << message;
  const Endpoint away = local_endpoint(listener.get());
  const NoMoreDescriptors exhausted;
  const std::string own = message_of([&] { connect_store(away, "t", std::chrono::milliseconds(100)); });
  EXPECT_NE(own.find("Too many open files"), std::string::npos) << own;
  EXPECT_EQ(own.find("is not a Lockstep store"), std::string::npos) << own;
}

TEST(TcpStore, RecoversWhenDescriptorsRunOut) {
  const StoreServer server({.token = "t"});
  const auto store = connect_store(server.endpoint(), "t", kStoreTime);
  // This connection waits in the backlog while the process, and so the server, cannot open descriptors.
  const Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.endpoint().port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  {
    const NoMoreDescriptors exhausted;
    EXPECT_EQ(dup(0), -1);
    ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    store->set("alive", "yes");
  }
  store_protocol::Hello hello;
  const auto deadline = std::chrono::steady_clock::now() + kStoreTime;
  EXPECT_EQ(receive_all(client.get(), std::as_writable_bytes(std::span(&hello, 1)), deadline), IoResult::kDone);
  EXPECT_EQ(store->get("alive", kStoreTime), "yes");
}

// Connections that send slowly, stop or send garbage affect no other.
TEST(TcpStore, SurvivesRubbish) {
  const StoreServer server({.token = "t"});
  const auto good = connect_store(server.endpoint(), "t", kStoreTime);
  const Endpoint at = server.endpoint();
  std::string why;
  std::vector<Fd> half_open;
  for (int i = 0; i < 50; ++i)
    half_open.push_back(try_connect_tcp(at.host, at.port, std::chrono::steady_clock::now() + kStoreTime, why));
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const Fd fd = try_connect_tcp(at.host, at.port, std::chrono::steady_clock::now() + kStoreTime, why);
    ASSERT_TRUE(fd) << why;
    std::vector<std::byte> rubbish(random() % 200);
    for (std::byte& value : rubbish) value = static_cast<std::byte>(random());
    const auto deadline = std::chrono::steady_clock::now() + kStoreTime;
    if (round % 2 == 0 && rubbish.size() >= 8) std::memcpy(rubbish.data(), store_protocol::kMagic.data(), 8);
    send_all(fd.get(), rubbish, deadline);
    if (round % 100 == 0) {
      good->set("alive", std::to_string(round));
      ASSERT_EQ(good->get("alive", kStoreTime), std::to_string(round));
    }
  }
}

TEST(TcpStore, ClosesAConnectionThatAnnouncesTooMuch) {
  using store_protocol::Request;
  const StoreServer server({.token = "t"});
  const auto deadline = std::chrono::steady_clock::now() + kStoreTime;
  const std::uint32_t too_long = store_protocol::kMaxValueBytes + 1;
  for (const store_protocol::RequestHeader header :
       {store_protocol::RequestHeader{Request::kSet, 1, too_long, 0},
        store_protocol::RequestHeader{Request::kSet, 513, 0, 0},
        store_protocol::RequestHeader{Request::kSet, UINT32_MAX, UINT32_MAX, 0},
        store_protocol::RequestHeader{Request::kGet, 0, 0, 0},
        store_protocol::RequestHeader{static_cast<Request>(77), 1, 0, 0}}) {
    const Fd fd = connect_as_member(server.endpoint(), deadline);
    send_all(fd.get(), std::as_bytes(std::span(&header, 1)), deadline);
    const std::byte key{'k'};
    send_all(fd.get(), std::span(&key, 1), deadline);
    std::byte answer;
    EXPECT_EQ(receive_all(fd.get(), std::span(&answer, 1), deadline), IoResult::kClosed);
  }
}

// The same after the handshake: a member's requests that were damaged on the way.
TEST(TcpStore, SurvivesMutatedRequests) {
  const StoreServer server({.token = "t"});
  const auto good = connect_store(server.endpoint(), "t", kStoreTime);
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const auto deadline = std::chrono::steady_clock::now() + kStoreTime;
    const Fd fd = connect_as_member(server.endpoint(), deadline);
    std::vector<std::byte> message(sizeof(store_protocol::RequestHeader) + 3);
    const store_protocol::RequestHeader header{store_protocol::Request::kSet, 1, 2, 0};
    std::memcpy(message.data(), &header, sizeof header);
    message[random() % message.size()] = static_cast<std::byte>(random());
    message.resize(1 + random() % message.size());
    send_all(fd.get(), message, deadline);
  }
  good->set("alive", "yes");
  EXPECT_EQ(good->get("alive", kStoreTime), "yes");
}

TEST(TcpStore, ManyClientsAtOnce) {
  const StoreServer server({.token = "t"});
  std::atomic<int> done{0};
  std::vector<std::thread> clients;
  for (int r = 0; r < 16; ++r)
    clients.emplace_back([&, r] {
      const auto store = connect_store(server.endpoint(), "t", kStoreTime);
      store->set("rank/" + std::to_string(r), std::to_string(r));
      for (int other = 0; other < 16; ++other)
        if (store->get("rank/" + std::to_string(other), kStoreTime) == std::to_string(other)) ++done;
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(done, 256);
}

}  // namespace
}  // namespace lockstep
