// Control connections between two ranks: the last message arrives.
#include "src/comm/host/liveness/control_connections.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "src/comm/net/socket.h"

namespace lockstep::host {
namespace {

using namespace std::chrono_literals;

class TwoRanks : public ::testing::Test {
 protected:
  TwoRanks() {
    const Deadline deadline = std::chrono::steady_clock::now() + 20s;
    const Fd listener = listen_tcp("127.0.0.1", 0);
    std::string why;
    Fd ends[2] = {try_connect_tcp("127.0.0.1", local_endpoint(listener.get()).port, deadline, why), Fd()};
    while (!ends[1] && std::chrono::steady_clock::now() < deadline)
      ends[1] = Fd(accept(listener.get(), nullptr, nullptr));
    const auto greet = [&](std::size_t rank) {
      std::vector<TcpPeer> peers(2);
      peers[1 - rank].socket = std::move(ends[rank]);
      links_[rank].emplace(static_cast<int>(rank), std::move(peers), 9s, deadline);
    };
    std::thread other([&] { greet(1); });
    greet(0);
    other.join();
  }

  std::optional<ControlConnections> links_[2];
};

// A reset of the connection might destroy the goodbye.
TEST_F(TwoRanks, AConnectionEndsInOrderThoughHeartbeatsWereNotRead) {
  for (int i = 0; i < 3; ++i) links_[0]->beat(1, {});
  links_[1]->tell(0, ControlMessage::kGoodbye);
  links_[1].reset();
  std::vector<ControlMessage> news;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (news.size() < 2 && std::chrono::steady_clock::now() < until) links_[0]->receive(news);
  ASSERT_EQ(news.size(), 2u);
  EXPECT_EQ(news[0].kind, ControlMessage::kGoodbye);
  EXPECT_EQ(news[1].kind, ControlMessage::kClosed);
  EXPECT_EQ(news[1].error, 0) << "a reset connection would have an error";
}

}  // namespace
}  // namespace lockstep::host
