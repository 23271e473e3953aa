// Messages over simulated streams: which of several ranks is read from, and what is sent meanwhile.
#include "src/comm/call/point_to_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 4;

// Streams to and from rank 0. Every other rank sends int32s without end, and accepts as much as there is room for.
class EndlessStreams : public ByteChannels {
 public:
  EndlessStreams() {
    MessageHeader header;
    header.count = 1;
    header.dtype = static_cast<std::uint32_t>(DType::kInt32);
    std::memcpy(message_.data(), &header, sizeof header);
  }

  std::size_t write(int peer, const std::byte*, std::size_t bytes) noexcept override {
    const std::size_t taken = std::min(bytes, room.at(static_cast<std::size_t>(peer)));
    room[static_cast<std::size_t>(peer)] -= taken;
    written[static_cast<std::size_t>(peer)] += taken;
    return taken;
  }
  std::size_t read(int peer, std::byte* data, std::size_t bytes) override {
    std::size_t& at = at_.at(static_cast<std::size_t>(peer));
    const std::size_t taken = std::min(bytes, message_.size() - at);
    std::memcpy(data, message_.data() + at, taken);
    at = (at + taken) % message_.size();
    return taken;
  }
  bool has_gone(int) override { return false; }
  void wait(const std::vector<bool>&, std::chrono::steady_clock::time_point) noexcept override {}
  void interrupt() noexcept override {}
  void throw_if_over(const std::function<std::string()>&) override {}
  [[noreturn]] void end(GroupErrorKind kind, const std::string& text, const std::string& doing) override {
    throw_group_error({kind, text}, doing);
  }
  std::string name_of_rank(int rank) const override { return "rank " + std::to_string(rank); }

  std::array<std::size_t, kRanks> room{}, written{};

 private:
  std::array<std::byte, sizeof(MessageHeader) + sizeof(std::int32_t)> message_{};
  std::array<std::size_t, kRanks> at_{};
};

// A server's loop: receives one message from each of the other ranks, and the next one when it has arrived.
class Server {
 public:
  explicit Server(EndlessStreams& streams)
      : messages_(std::make_shared<PointToPoint>(Place{0, kRanks, 0, kRanks}, streams)) {
    for (int peer = 1; peer < kRanks; ++peer) wanted_.push_back(receive_from(peer));
  }
  ~Server() { messages_->leave(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Returns how many messages arrived from each rank.
  std::array<int, kRanks> serve(int messages) {
    std::array<int, kRanks> from{};
    for (int i = 0; i < messages; ++i) {
      const auto come = wait_any(wanted_, 20s);
      EXPECT_TRUE(come.has_value());
      if (!come) break;
      const int peer = static_cast<int>(*come) + 1;
      ++from[static_cast<std::size_t>(peer)];
      wanted_[*come] = receive_from(peer);
    }
    return from;
  }
  Work send_to(int peer, std::int32_t& number) {
    return PointToPoint::send(messages_, {&number, 1, DType::kInt32, peer, 0, nullptr, 20s});
  }

 private:
  Work receive_from(int peer) {
    return PointToPoint::receive(messages_,
                                 {&got_.at(static_cast<std::size_t>(peer)), 1, DType::kInt32, peer, 0, nullptr, 20s});
  }

  std::shared_ptr<PointToPoint> messages_;
  std::array<std::int32_t, kRanks> got_{};
  std::vector<Work> wanted_;
};

TEST(PointToPoint, ARankThatNeverStopsSendingLeavesTheOthersTheirTurns) {
  EndlessStreams streams;
  Server server(streams);
  const auto from = server.serve(30);
  for (int peer = 1; peer < kRanks; ++peer) EXPECT_EQ(from[static_cast<std::size_t>(peer)], 10) << peer;
}

TEST(PointToPoint, WhatIsSentMovesWhileOthersMessagesCome) {
  EndlessStreams streams;
  Server server(streams);
  std::int32_t number = 7;
  const Work sent = server.send_to(kRanks - 1, number);
  EXPECT_EQ(streams.written[kRanks - 1], 0u) << "there was no room";
  streams.room.fill(1000);
  server.serve(1);
  EXPECT_EQ(streams.written[kRanks - 1], sizeof(MessageHeader) + sizeof number);
  EXPECT_TRUE(sent.done());
}

}  // namespace
}  // namespace lockstep
