// Sees a peer's process end within milliseconds: a thread that sleeps in poll on the peers' life lines.
#pragma once

#include <functional>
#include <span>
#include <thread>

#include "src/comm/socket.h"

namespace lockstep::ring {

class LifeWatch {
 public:
  // Calls `gone(rank)` once, on the watching thread, when lines[rank] hangs up; entries of -1 are not watched. The
  // descriptors must stay open until the watch is destroyed.
  LifeWatch(std::span<const int> lines, std::function<void(int rank)> gone);
  ~LifeWatch();
  LifeWatch(const LifeWatch&) = delete;
  LifeWatch& operator=(const LifeWatch&) = delete;

 private:
  Fd stop_;
  std::thread thread_;
};

}  // namespace lockstep::ring
