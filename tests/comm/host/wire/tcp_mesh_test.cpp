// How ranks connect to each other: the handshake as bytes, unauthenticated peers, several sockets, IPv6.
#include "src/comm/host/wire/tcp_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <future>
#include <random>
#include <thread>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/host/wire/link_handshake.h"
#include "src/comm/net/interface.h"
#include "src/comm/store/memory_store.h"
#include "tests/support/message_of.h"

namespace lockstep::host {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

// -- the handshake, without sockets

// Passes the bytes of each side to the other, `at_once` at a time, until both are done or one refuses.
void talk(LinkHandshake& a, LinkHandshake& b, std::size_t at_once = 1000) {
  for (int turn = 0; turn < 1000; ++turn) {
    LinkHandshake& from = turn % 2 == 0 ? a : b;
    LinkHandshake& to = turn % 2 == 0 ? b : a;
    const std::size_t bytes = std::min({from.to_send().size(), to.wanted().size(), at_once});
    if (bytes == 0) continue;
    std::copy_n(from.to_send().begin(), bytes, to.wanted().begin());
    from.sent(bytes);
    to.received(bytes);
  }
}

LinkHandshake::Self self(int rank, const std::string& token = "secret") { return {rank, 4, 2, 1000 + rank, token}; }

TEST(LinkHandshake, TellsBothWhoTheOtherIs) {
  const auto three = self(3), one = self(1);
  for (const std::size_t at_once : {std::size_t{1}, std::size_t{1000}}) {
    auto connector = LinkHandshake::connect(three, 1, 1), acceptor = LinkHandshake::accept(one);
    talk(connector, acceptor, at_once);
    ASSERT_TRUE(connector.done() && acceptor.done());
    EXPECT_EQ(acceptor.peer(), 3);
    EXPECT_EQ(acceptor.socket(), 1);
    EXPECT_EQ(acceptor.pid(), 1003);
    EXPECT_EQ(connector.pid(), 1001);
    EXPECT_TRUE(connector.wanted().empty() && acceptor.wanted().empty()) << "what follows is data";
  }
}

TEST(LinkHandshake, RefusesAnotherToken) {
  const auto three = self(3, "other"), one = self(1);
  auto connector = LinkHandshake::connect(three, 1, 0), acceptor = LinkHandshake::accept(one);
  talk(connector, acceptor);
  EXPECT_TRUE(acceptor.refused()) << "the connector proves itself first";
  EXPECT_FALSE(connector.done());
}

// A peer that guesses tokens must not get data made with the right one for comparison; so the acceptor sends nothing.
TEST(LinkHandshake, AnUnauthenticatedPeerHearsNothingMadeWithTheToken) {
  const auto three = self(3), one = self(1);
  auto unauthenticated = LinkHandshake::connect(three, 1, 0), acceptor = LinkHandshake::accept(one);
  const std::vector<std::byte> said(unauthenticated.to_send().begin(), unauthenticated.to_send().end());
  std::copy(said.begin(), said.end(), acceptor.wanted().begin());
  acceptor.received(said.size());
  const std::vector<std::byte> received(acceptor.to_send().begin(), acceptor.to_send().end());
  ASSERT_GE(received.size(), sizeof(Nonce)) << "its nonce at least";
  const auto at = [](const std::vector<std::byte>& bytes, std::size_t begin) {
    crypto::Digest part{};
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin), part.size(), part.begin());
    return part;
  };
  const Nonce mine = at(said, said.size() - sizeof(Nonce));
  for (std::size_t nonce = 0; nonce + sizeof(Nonce) <= received.size(); ++nonce)
    for (std::size_t proof = 0; proof + sizeof(crypto::Digest) <= received.size(); ++proof)
      EXPECT_FALSE(is_proven(at(received, proof), "secret", Role::kLinkAcceptor, mine, at(received, nonce), 1))
          << nonce << " " << proof;
}

TEST(TokenProof, IsNoneForAnotherKindOfConnection) {
  const Nonce a = make_nonce(), b = make_nonce();
  const auto over_tcp = prove("secret", Role::kLinkConnector, a, b, 1);
  EXPECT_TRUE(is_proven(over_tcp, "secret", Role::kLinkConnector, a, b, 1));
  for (const Role role :
       {Role::kLinkAcceptor, Role::kMemoryConnector, Role::kMemoryAcceptor, Role::kStoreClient, Role::kNodeAgent})
    EXPECT_FALSE(is_proven(over_tcp, "secret", role, a, b, 1));
}

TEST(LinkHandshake, RefusesWhoeverHasNoBusinessHere) {
  const auto one = self(1), three = self(3), zero = self(0);
  const auto is_refused = [&](LinkHandshake connector, const LinkHandshake::Self& by) {
    auto acceptor = LinkHandshake::accept(by);
    talk(connector, acceptor);
    return acceptor.refused();
  };
  EXPECT_TRUE(is_refused(LinkHandshake::connect(zero, 1, 0), one)) << "the lower rank accepts";
  EXPECT_TRUE(is_refused(LinkHandshake::connect(three, 2, 0), one)) << "it wanted another rank";
  EXPECT_TRUE(is_refused(LinkHandshake::connect(three, 1, 2), one)) << "there is no such socket";
  EXPECT_FALSE(is_refused(LinkHandshake::connect(three, 1, 0), one));
}

// A change of any one byte is refused.
TEST(LinkHandshake, RefusesWhatWasChangedOnTheWay) {
  const auto three = self(3), one = self(1);
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    auto connector = LinkHandshake::connect(three, 1, 0), acceptor = LinkHandshake::accept(one);
    talk(connector, acceptor, 1000);
    auto again = LinkHandshake::accept(one);
    auto attacker = LinkHandshake::connect(three, 1, 0);
    const auto copy = [&](LinkHandshake& from, LinkHandshake& to, bool spoil) {
      std::vector<std::byte> bytes(from.to_send().begin(), from.to_send().end());
      ASSERT_EQ(bytes.size(), to.wanted().size());
      if (spoil) bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
      std::copy(bytes.begin(), bytes.end(), to.wanted().begin());
      from.sent(bytes.size());
      to.received(bytes.size());
    };
    copy(attacker, again, false);
    copy(again, attacker, false);
    copy(attacker, again, true);
    EXPECT_TRUE(again.refused());
  }
}

TEST(MeshAddress, IsReadBackAsItWasTold) {
  for (const MeshAddress& address : {MeshAddress{"10.0.0.1", 4000, 1}, MeshAddress{"fe80::1", 65535, 16}})
    EXPECT_EQ(parse_mesh_address(to_text(address)), address);
  for (const char* damaged :
       {"", "10.0.0.1", "10.0.0.1 4000", "10.0.0.1 0 1", "10.0.0.1 4000 0", "10.0.0.1 x 1", "10.0.0.1 4000 17"})
    EXPECT_THROW(parse_mesh_address(damaged), Error) << damaged;
}

// -- meshes

BackendContext context_of(int rank, int ranks, std::shared_ptr<Store> store, const std::string& address = "127.0.0.1") {
  BackendContext context;
  context.place = {rank, ranks, rank, ranks};
  context.store = std::move(store);
  context.token = "secret";
  context.advertise_address = address;
  context.timeout = context.store_timeout = 20s;
  return context;
}

// Returns the connections by rank. Each rank's setting is `sockets[rank]`.
std::vector<std::vector<TcpPeer>> connect_all(const std::vector<int>& sockets,
                                              const std::string& address = "127.0.0.1") {
  const auto store = std::make_shared<MemoryStore>();
  const int ranks = static_cast<int>(sockets.size());
  std::vector<std::future<std::vector<TcpPeer>>> meshes;
  for (int rank = 0; rank < ranks; ++rank)
    meshes.push_back(std::async(std::launch::async, [=] {
      return connect_mesh(context_of(rank, ranks, store, address), "mesh", sockets[static_cast<std::size_t>(rank)]);
    }));
  std::vector<std::vector<TcpPeer>> all;
  for (auto& mesh : meshes) all.push_back(mesh.get());
  return all;
}

// Checks that the two sockets are the ends of one connection.
void expect_joined(int a, int b) {
  EXPECT_EQ(local_endpoint(a).text(), peer_endpoint(b).text());
  EXPECT_EQ(peer_endpoint(a).text(), local_endpoint(b).text());
}

TEST(TcpMesh, JoinsEverybodyByTheNumberOfSocketsThatRankZeroHas) {
  const auto all = connect_all({2, 1, 3, 16, 1});
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = 0; b < all.size(); ++b) {
      if (a == b) continue;
      expect_joined(all[a][b].socket.get(), all[b][a].socket.get());
      ASSERT_EQ(all[a][b].more.size(), 1u);
      expect_joined(all[a][b].more[0].get(), all[b][a].more[0].get());
    }
  }
}

TEST(TcpMesh, StartsFromItsOwnAddress) {
  const auto all = connect_all({1, 1}, "127.0.0.7");
  EXPECT_EQ(local_endpoint(all[1][0].socket.get()).host, "127.0.0.7");
  EXPECT_EQ(peer_endpoint(all[1][0].socket.get()).host, "127.0.0.7");
}

TEST(TcpMesh, JoinsOverIpv6) {
  std::string address = "::1";
  for (const InterfaceAddress& each : interface_addresses())
    if (is_link_local(each.address)) address = each.address;
  try {
    listen_tcp(address, 0);
  } catch (const Error& error) {
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
  for (const std::string& own : {std::string("::1"), address}) {
    const auto all = connect_all({1, 1, 1}, own);
    EXPECT_EQ(peer_endpoint(all[2][0].socket.get()).host, own);
  }
}

// Some of them send nothing, some send slowly, some send garbage; the ranks connect all the same.
TEST(TcpMesh, UnauthenticatedPeersDelayNoRank) {
  const auto store = std::make_shared<MemoryStore>();
  auto first = std::async(std::launch::async, [=] { return connect_mesh(context_of(0, 2, store), "mesh"); });
  const MeshAddress at = parse_mesh_address(store->get("mesh/address/0", 20s));
  std::vector<Fd> unauthenticated;
  std::string why;
  const auto until = std::chrono::steady_clock::now() + 20s;
  for (int i = 0; i < 200; ++i) {
    unauthenticated.push_back(try_connect_tcp(at.host, at.port, until, why));
    ASSERT_TRUE(unauthenticated.back()) << why;
    const std::string text = i % 3 == 0 ? "" : i % 3 == 1 ? "x" : std::string(500, 'x');
    send_all(unauthenticated.back().get(), std::as_bytes(std::span(text)), until);
  }
  const auto started = std::chrono::steady_clock::now();
  const auto second = connect_mesh(context_of(1, 2, store), "mesh");
  const auto mesh = first.get();
  EXPECT_LT(std::chrono::steady_clock::now() - started, 4s) << "a silent unauthenticated peer has five seconds";
  expect_joined(mesh[1].socket.get(), second[0].socket.get());
}

// The acts of a rank whose connection is dropped in a flood: the listener closes it before the handshake is complete.
TEST(TcpMesh, ARankThatIsDroppedInItsHandshakeTriesAgain) {
  const auto store = std::make_shared<MemoryStore>();
  const Fd door = listen_tcp("127.0.0.1", 0);
  store->set("mesh/address/0", to_text({"127.0.0.1", local_endpoint(door.get()).port, 1}));
  auto mesh = std::async(std::launch::async, [=] { return connect_mesh(context_of(1, 2, store), "mesh"); });
  const auto until = std::chrono::steady_clock::now() + 20s;
  const auto accept_next = [&] {
    pollfd item{door.get(), POLLIN, 0};
    EXPECT_EQ(poll(&item, 1, 20'000), 1);
    return Fd(accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
  };
  for (int dropped = 0; dropped < 3; ++dropped) accept_next();
  const Fd taken = accept_next();
  const LinkHandshake::Self zero{0, 2, 1, 1, "secret"};
  auto acceptor = LinkHandshake::accept(zero);
  while (taken && !acceptor.done()) {
    const IoResult result = acceptor.to_send().empty() ? receive_all(taken.get(), acceptor.wanted(), until)
                                                       : send_all(taken.get(), acceptor.to_send(), until);
    ASSERT_EQ(result, IoResult::kDone);
    if (acceptor.to_send().empty())
      acceptor.received(acceptor.wanted().size());
    else
      acceptor.sent(acceptor.to_send().size());
  }
  expect_joined(taken.get(), mesh.get()[0].socket.get());
}

TEST(TcpMesh, WithoutATokenItListensOnLoopbackOnly) {
  const auto store = std::make_shared<MemoryStore>();
  BackendContext context = context_of(0, 2, store, "0.0.0.0");
  context.token = "";
  context.store_timeout = 100ms;
  const auto refusal = AllOf(HasSubstr("rank 0 would listen for the other ranks on 0.0.0.0"), HasSubstr("has no token"),
                             HasSubstr("LOCKSTEP_TOKEN"), HasSubstr("LOCKSTEP_INSECURE=1"));
  const auto message = [&] { return message_of([&] { connect_mesh(context, "mesh"); }); };
  const auto with = [&](const char* variable, const char* value) {
    setenv(variable, value, 1);
    const std::string text = message();
    unsetenv(variable);
    return text;
  };
  EXPECT_THAT(message(), refusal);
  EXPECT_THAT(with(env::kInterface, "eth7"), AllOf(refusal, HasSubstr("LOCKSTEP_INTERFACE=eth7")));
  EXPECT_THAT(with("KUBERNETES_SERVICE_HOST", "10.96.0.1"), AllOf(refusal, HasSubstr("KUBERNETES_SERVICE_HOST")));
  EXPECT_THAT(with(env::kMasterAddr, "127.0.0.1"), AllOf(refusal, HasSubstr("MASTER_ADDR=127.0.0.1")));
  EXPECT_THAT(with(env::kInsecure, "1"), HasSubstr("rank 0 waited on 0.0.0.0 for ranks 1"));
  context.advertise_address = "127.0.0.1";
  EXPECT_THAT(message(), HasSubstr("rank 0 waited on 127.0.0.1 for ranks 1"));
}

TEST(TcpMesh, NamesWhoDidNotCome) {
  const auto store = std::make_shared<MemoryStore>();
  BackendContext context = context_of(0, 3, store);
  context.store_timeout = 200ms;
  EXPECT_THAT(message_of([&] { connect_mesh(context, "mesh"); }), AllOf(HasSubstr("rank 0"), HasSubstr("ranks 1, 2")));
  context.place.rank = 2;
  store->set("silent/address/0", to_text({"127.0.0.1", 1, 1}));
  EXPECT_THAT(message_of([&] { connect_mesh(context, "silent"); }),
              HasSubstr("rank 2: rank 1 of 3 did not arrive within 0.2 s, though"));
  store->set("gone/address/0", to_text({"127.0.0.1", 1, 1}));
  EXPECT_THAT(message_of([&] { connect_mesh(context_of(1, 2, store), "gone"); }),
              AllOf(HasSubstr("rank 1 cannot reach rank 0 at 127.0.0.1:1"), HasSubstr("refused")));
}

}  // namespace
}  // namespace lockstep::host
