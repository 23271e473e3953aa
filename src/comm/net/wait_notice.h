// Logs every 5 s which ranks a rank waits for while the job starts, so that a user who starts ranks one by one sees
// which are missing.
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/core/log.h"

namespace lockstep {

class WaitNotice {
 public:
  using Clock = std::chrono::steady_clock;

  // Call it from time to time. `whom` makes the text ("rank 3 of 4"); it is called only if the time has come to log it.
  template <typename Whom> void look(const Whom& whom) {
    if (Clock::now() < next_) return;
    log::info("waiting for {}, {} s so far", whom(),
              std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin_).count());
    next_ = Clock::now() + kEvery;
  }

  // No single step of a wait should take longer.
  std::chrono::milliseconds until_next() const {
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(next_ - Clock::now()), std::chrono::milliseconds(1));
  }

 private:
  static constexpr auto kEvery = std::chrono::seconds(5);
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_ + kEvery;
};

}  // namespace lockstep
