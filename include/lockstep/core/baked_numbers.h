// Numbers of the host that go into the arguments of kernels, and may be others in the next step: a learning rate, a loss scale.
//
// A step that is recorded as a graph repeats the numbers of its recording. Code that hands such a number to a kernel notes it, every time;
// the recorder sees later whether it still holds (ddp/graph.h), and records anew when it does not.
#pragma once

#include <functional>
#include <vector>

namespace lockstep {

// While one lives it keeps what this thread notes. They nest: the innermost hears of it.
class BakedNumbers {
 public:
  BakedNumbers();
  ~BakedNumbers();
  BakedNumbers(const BakedNumbers&) = delete;
  BakedNumbers& operator=(const BakedNumbers&) = delete;

  // `now` says what the number is at present; it must stay callable as long as the graph is in use. Without a listener: does nothing.
  static void note(std::function<double()> now);

  struct Number {
    std::function<double()> now;
    double noted;
  };
  std::vector<Number> take() { return std::move(numbers_); }

 private:
  std::vector<Number> numbers_;
  BakedNumbers* outer_;
};

// Is every number what it was when it was noted?
bool still_hold(const std::vector<BakedNumbers::Number>& numbers);

}  // namespace lockstep
