// Work that is split among threads, and kernels whose results do not depend on the number of threads.
#include "src/core/process/compute_threads.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "kernels/cases/shapes.h"
#include "tests/kernels/cpu/exact.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {
namespace {

// If the tests run with OMP_NUM_THREADS, its value would apply.
class ComputeThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    set_compute_threads(3);
    if (compute_threads() != 3) GTEST_SKIP() << "OMP_NUM_THREADS is set";
  }
  void TearDown() override { set_compute_threads(0); }
};

TEST_F(ComputeThreads, EveryPartIsDoneOnce) {
  for (const std::int64_t parts : {0, 1, 2, 3, 100}) {
    std::vector<std::atomic<int>> done(static_cast<std::size_t>(parts));
    in_parallel(parts, [&](std::int64_t part) { ++done[static_cast<std::size_t>(part)]; });
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
}

TEST_F(ComputeThreads, AnExceptionComesThroughAndTheNextWorkIsDone) {
  EXPECT_THROW(in_parallel(50, [](std::int64_t part) { part == 7 ? throw std::runtime_error("no") : void(); }),
               std::runtime_error);
  std::atomic<int> done = 0;
  in_parallel(50, [&](std::int64_t) { ++done; });
  EXPECT_EQ(done, 50);
}

TEST_F(ComputeThreads, WorkInsideOfWorkAndOfSeveralThreadsIsDone) {
  std::atomic<int> done = 0;
  const auto work = [&] { in_parallel(4, [&](std::int64_t) { in_parallel(5, [&](std::int64_t) { ++done; }); }); };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(done, 40);
}

// The thread that holds the pool must not request it again.
TEST_F(ComputeThreads, APartDoesWhatItSplitsAgainInItsOwnThread) {
  std::atomic<int> done = 0, elsewhere = 0;
  const auto split_again = [&](std::int64_t) {
    const auto mine = std::this_thread::get_id();
    in_parallel(6, [&](std::int64_t) {
      ++done;
      if (std::this_thread::get_id() != mine) ++elsewhere;
    });
  };
  in_parallel(8, split_again);
  EXPECT_EQ(done, 48);
  EXPECT_EQ(elsewhere, 0);
  const auto with_share = [&](int number) {
    const ComputeShare share(number, 2);
    in_parallel(8, split_again);
  };
  set_compute_threads(6);
  std::thread other(with_share, 0);
  with_share(1);
  other.join();
  EXPECT_EQ(done, 3 * 48);
  EXPECT_EQ(elsewhere, 0);
}

TEST_F(ComputeThreads, AForkedChildHasThreadsOfItsOwn) {
  if (testing::kThreadSanitized) GTEST_SKIP() << "TSan ends a forked child that starts threads";
  in_parallel(4, [](std::int64_t) {});
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    std::atomic<int> done = 0;
    in_parallel(4, [&](std::int64_t) { ++done; });
    ::_exit(done == 4 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// -- the same bits, however many threads

template <typename Run> void expect_same_by_any_number(const std::string& what, const Run& run) {
  set_compute_threads(1);
  const std::vector<Floats> alone = run();
  for (const int threads : {2, 7}) {
    set_compute_threads(threads);
    const std::vector<Floats> together = run();
    for (std::size_t i = 0; i < alone.size(); ++i)
      EXPECT_EQ(alone[i], together[i]) << what << ", result " << i << ", " << threads << " threads";
  }
}

// Instrumented plain kernels need a minute for the largest, and distribute them as they do the others.
bool takes_too_long(Index products) { return kSanitized && products > 50'000'000; }

Conv2dShape square(Index batch, Index side, Index in, Index out, Index kernel, Index pad, Index stride = 1) {
  const Index result = (side + 2 * pad - kernel) / stride + 1;
  return {batch, side, side, in, result, result, out, kernel, kernel, stride, stride, pad, pad, pad, pad};
}

TEST_F(ComputeThreads, ConvolutionsDoNotDependOnThem) {
  for (const Conv2dShape& s :
       {square(17, 24, 3, 64, 5, 2), square(20, 12, 64, 64, 5, 2), square(32, 14, 16, 32, 3, 1),
        square(7, 9, 8, 8, 1, 0), square(16, 15, 32, 48, 3, 1, 2), square(1, 16, 128, 64, 3, 2),
        square(2, 6, 16, 16, 5, 4, 2), square(4, 60, 1, 16, 1, 0, 2), square(32, 4, 64, 64, 3, 1),
        in_groups(80, square(17, 14, 80, 80, 3, 1)), in_groups(4, square(20, 12, 64, 64, 3, 1))}) {
    const Index x_count = s.batch * s.in_height * s.in_width * s.in_channels;
    const Index y_count = s.batch * s.out_height * s.out_width * s.out_channels;
    const Index weights = weight_shape(s).count();
    if (takes_too_long(s.batch * s.out_height * s.out_width * weights)) continue;
    const Floats x = uniform(x_count, 1), weight = uniform(weights, 2), bias = uniform(s.out_channels, 3),
                 y_grad = uniform(y_count, 4);
    for (const bool accumulate : {false, true}) {
      if (kSanitized && !accumulate) continue;
      expect_same_by_any_number(fmt::format("{} to {}, {}", s.in_channels, s.out_channels, accumulate), [&] {
        std::vector<Floats> results = {Floats(y_count), uniform(x_count, 5), uniform(weights, 6),
                                       uniform(s.out_channels, 7)};
        tested().conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), in(bias, bias_shape(s)), true,
                        out(results[0], y_shape(s)), stream());
        tested().conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)),
                                      out(results[1], x_shape(s), accumulate), stream());
        tested().conv2d_backward_weights(s, in(x, x_shape(s)), in(y_grad, y_shape(s)),
                                         out(results[2], weight_shape(s), accumulate),
                                         out(results[3], bias_shape(s), accumulate), stream());
        return results;
      });
    }
  }
}

TEST_F(ComputeThreads, LinearLayersDoNotDependOnThem) {
  for (const LinearShape& s :
       {LinearShape{64, 784, 1024}, LinearShape{50, 784, 1024}, LinearShape{128, 2304, 384}, LinearShape{128, 64, 4},
        LinearShape{2000, 10, 16}, LinearShape{33, 1000, 70}, LinearShape{64, 600, 800}}) {
    if (takes_too_long(s.batch * s.in_features * s.out_features)) continue;
    const Floats x = uniform(s.batch * s.in_features, 1), weight = uniform(s.in_features * s.out_features, 2);
    const Floats bias = uniform(s.out_features, 3), y_grad = uniform(s.batch * s.out_features, 4);
    for (const bool accumulate : {false, true}) {
      if (kSanitized && !accumulate) continue;
      expect_same_by_any_number(fmt::format("{} rows of {} to {}", s.batch, s.in_features, s.out_features), [&] {
        std::vector<Floats> results = {Floats(s.batch * s.out_features), uniform(s.batch * s.in_features, 5),
                                       uniform(s.in_features * s.out_features, 6), uniform(s.out_features, 7)};
        tested().linear(in(x, x_shape(s)), in(weight, weight_shape(s)), in(bias, bias_shape(s)), true,
                        out(results[0], y_shape(s)), stream());
        tested().linear_backward_data(in(y_grad, y_shape(s)), in(weight, weight_shape(s)),
                                      out(results[1], x_shape(s), accumulate), stream());
        tested().linear_backward_weights(in(x, x_shape(s)), in(y_grad, y_shape(s)),
                                         out(results[2], weight_shape(s), accumulate),
                                         out(results[3], bias_shape(s), accumulate), stream());
        return results;
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
