// The network between TUN interfaces: a thread that reads IP packets from one and writes them to the one to which they
// are addressed, with the configured delay, loss and reordering.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "src/core/process/fd.h"

namespace lockstep::testing {

class PacketRelay {
 public:
  // Tunnel i belongs to machine i, whose addresses end in i + 1.
  explicit PacketRelay(std::vector<Fd> tunnels);
  ~PacketRelay();
  PacketRelay(const PacketRelay&) = delete;
  PacketRelay& operator=(const PacketRelay&) = delete;

  struct Conditions {
    std::chrono::microseconds delay{0};
    double loss = 0;       // fraction of packets that are lost
    double overtaken = 0;  // fraction of packets that are delayed more, so that later ones overtake them
    std::chrono::microseconds overtaken_by{2000};
  };
  void set(const Conditions& conditions);
  // No packet reaches or leaves that machine.
  void cut(int machine, bool is_cut);

  std::uint64_t delivered() const { return delivered_.load(); }
  std::uint64_t lost() const { return lost_.load(); }
  std::uint64_t delayed_behind_others() const { return overtaken_.load(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Packet {
    Clock::time_point due;
    std::uint64_t number = 0;  // order of arrival: packets that are due at the same time keep it
    int to = 0;
    std::vector<char> bytes;
    bool operator<(
        const Packet& other) const {  // the top of a heap is its largest element: the packet that is due first
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  void run();
  void take_from(int machine);
  void deliver_what_is_due();
  void wait() const;
  int destination_of(const std::vector<char>& packet) const;  // -1: no machine here
  bool is_cut(int machine) const { return (cuts_.load() >> machine & 1) != 0; }

  std::vector<Fd> tunnels_;
  Fd wake_;
  std::mutex mutex_;
  Conditions conditions_;  // guarded by mutex_
  std::atomic<std::uint64_t> cuts_{0}, delivered_{0}, lost_{0}, overtaken_{0};
  std::atomic<bool> stop_{false};
  // Only for the thread:
  std::mt19937_64 random_{1};
  std::vector<Packet> queue_;  // a heap
  std::uint64_t arrivals_ = 0;
  std::thread thread_;
};

}  // namespace lockstep::testing
