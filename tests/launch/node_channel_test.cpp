// The connection between two lockruns, over a socket pair: who is accepted, and the effect of malformed bytes (they
// close it, nothing else).
#include "src/launch/nodes/node_channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>

#include "src/comm/store/store_protocol.h"

namespace lockstep::launch {
namespace {

using Side = NodeChannel::Side;
using State = NodeChannel::State;

struct Ends {
  Fd coordinator, agent;
};
Ends make_ends() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

// Alternates between both sides until nothing changes any more.
void settle(NodeChannel& a, NodeChannel& b) {
  for (int i = 0; i < 10; ++i) a.move(), b.move();
}

void write_bytes(const Fd& fd, const void* data, std::size_t bytes) {
  ASSERT_EQ(::send(fd.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

NodeMessage waiting(const std::string& why) { return {.kind = NodeMessage::Kind::kWaiting, .why = why}; }

TEST(NodeChannel, CarriesMessagesBothWaysInOrder) {
  Ends ends = make_ends();
  NodeChannel coordinator(std::move(ends.coordinator), Side::kCoordinator, "token"),
      agent(std::move(ends.agent), Side::kAgent, "token");
  settle(coordinator, agent);
  ASSERT_EQ(coordinator.state(), State::kOpen);
  ASSERT_EQ(agent.state(), State::kOpen);
  for (int i = 0; i < 50; ++i) agent.send(waiting(std::to_string(i)));
  coordinator.send(waiting("back"));
  settle(coordinator, agent);
  for (int i = 0; i < 50; ++i) {
    const auto message = coordinator.next();
    ASSERT_TRUE(message) << i;
    EXPECT_EQ(message->why, std::to_string(i));
  }
  EXPECT_FALSE(coordinator.next());
  EXPECT_EQ(agent.next()->why, "back");
}

TEST(NodeChannel, WhatWasSaidBeforeTheEndIsHeard) {
  for (const bool answers : {false, true}) {
    Ends ends = make_ends();
    NodeChannel coordinator(std::move(ends.coordinator), Side::kCoordinator, "token"),
        agent(std::move(ends.agent), Side::kAgent, "token");
    settle(coordinator, agent);
    coordinator.send(waiting("last words"));
    coordinator.close();
    if (answers) agent.send(waiting("too late"));
    agent.move();
    EXPECT_EQ(agent.state(), State::kClosed);
    EXPECT_TRUE(agent.next()) << "answers: " << answers;
  }
}

TEST(NodeChannel, AnotherTokenIsRefusedOnBothSides) {
  Ends ends = make_ends();
  NodeChannel coordinator(std::move(ends.coordinator), Side::kCoordinator, "token"),
      agent(std::move(ends.agent), Side::kAgent, "tokem");
  settle(coordinator, agent);
  EXPECT_EQ(coordinator.state(), State::kRefused);
  EXPECT_EQ(agent.state(), State::kRefused);
}

// A coordinator that accepts without knowing the token is just as unauthenticated.
TEST(NodeChannel, ACoordinatorMustProveItselfToo) {
  Ends ends = make_ends();
  NodeChannel agent(std::move(ends.agent), Side::kAgent, "token");
  const char magic[] = "LOCKNOD3";
  const std::string nonce(32, 'n'), proof(32, '\0');
  write_bytes(ends.coordinator, magic, 8);
  write_bytes(ends.coordinator, nonce.data(), nonce.size());
  agent.move();
  const std::uint64_t accepted = 1;
  write_bytes(ends.coordinator, &accepted, sizeof accepted);
  write_bytes(ends.coordinator, proof.data(), proof.size());
  agent.move();
  EXPECT_EQ(agent.state(), State::kRefused);
}

TEST(NodeChannel, AStoreAndOtherServicesAreTold) {
  const std::string nonce(32, 'n');
  for (const bool is_store : {true, false}) {
    Ends ends = make_ends();
    NodeChannel agent(std::move(ends.agent), Side::kAgent, "token");
    write_bytes(ends.coordinator, is_store ? store_protocol::kMagic.data() : "SSH-2.0-", 8);
    write_bytes(ends.coordinator, nonce.data(), nonce.size());
    agent.move();
    EXPECT_EQ(agent.state(), is_store ? State::kStore : State::kOtherService);
  }
}

TEST(NodeChannel, AnUnauthenticatedPeerThatSendsTooMuchOrNonsenseIsClosed) {
  for (const std::size_t bytes : {std::size_t{72}, std::size_t{73}, std::size_t{100'000}}) {
    Ends ends = make_ends();
    NodeChannel coordinator(std::move(ends.coordinator), Side::kCoordinator, "token");
    const std::string noise(bytes, 'x');
    write_bytes(ends.agent, noise.data(), noise.size());
    coordinator.move();
    EXPECT_EQ(coordinator.state(), State::kClosed) << bytes;
  }
}

TEST(NodeChannel, MalformedMessagesCloseAnOpenConnection) {
  const auto framed = [](std::uint32_t announced, const std::string& text) {
    return std::string(reinterpret_cast<const char*>(&announced), sizeof announced) + text;
  };
  for (const std::string& bad :
       {framed(3, "{}}"), framed(0, ""), framed(0xffffffff, "x"), framed((1 << 20) + 1, "x"), framed(2, "{}")}) {
    Ends ends = make_ends();
    const int raw = ends.agent.get();
    NodeChannel coordinator(std::move(ends.coordinator), Side::kCoordinator, "token"),
        agent(std::move(ends.agent), Side::kAgent, "token");
    settle(coordinator, agent);
    ASSERT_EQ(coordinator.state(), State::kOpen);
    ASSERT_EQ(::send(raw, bad.data(), bad.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bad.size()));
    coordinator.move();
    EXPECT_EQ(coordinator.state(), State::kClosed);
    EXPECT_FALSE(coordinator.next());
  }
}

TEST(NodeChannel, BytesMayComeOneByOne) {
  Ends outer = make_ends(), inner = make_ends();
  NodeChannel coordinator(std::move(outer.coordinator), Side::kCoordinator, "token"),
      agent(std::move(inner.agent), Side::kAgent, "token");
  agent.move();
  const auto drip = [](const Fd& from, const Fd& to) {
    char byte = 0;
    if (::recv(from.get(), &byte, 1, MSG_DONTWAIT) == 1) write_bytes(to, &byte, 1);
  };
  bool has_sent = false;
  for (int i = 0; i < 2000; ++i) {
    drip(outer.agent, inner.coordinator);
    drip(inner.coordinator, outer.agent);
    coordinator.move(), agent.move();
    if (agent.state() == State::kOpen && !has_sent) agent.send(waiting("drop by drop")), has_sent = true;
  }
  const auto message = coordinator.next();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->why, "drop by drop");
}

}  // namespace
}  // namespace lockstep::launch
