// Stacks on which the threads of an emulated block run in turn.
#pragma once

#include <ucontext.h>

#include <array>

namespace emulated_cuda {

// A place in the execution of one stack.
struct Context {
  ucontext_t begin{};
  bool has_begun = false;
  std::array<void*, 5> place{};
};

// Continues at `to`, until something continues at `from`. swapcontext() makes a system call each time, for the mask of
// signals, which would be most of the time of these tests.
#if defined(__x86_64__) && !defined(__SHSTK__)
[[noreturn, gnu::noinline]] inline void jump_to(Context& to) { __builtin_longjmp(to.place.data(), 1); }
[[gnu::noinline]] inline void switch_contexts(Context& from, Context& to) {
  from.has_begun = true;
  if (__builtin_setjmp(from.place.data()) != 0) return;
  if (to.has_begun) jump_to(to);
  setcontext(&to.begin);
}
#else
inline void switch_contexts(Context& from, Context& to) { swapcontext(&from.begin, &to.begin); }
#endif

}  // namespace emulated_cuda
