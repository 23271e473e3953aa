// Which attention cuDNN computes, and in which parts, on the emulation's cuDNN; and what follows if it cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "tests/kernels/emulated_cuda/cuda_runtime.h"  // replaces CUDA's own
// The kernels' headers need the header above.
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/cudnn_graph.h"
#include "lockstep/core/environment.h"
#include "tests/kernels/emulated_cuda/table.h"
#include "tests/kernels/reference_comparison.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/support/recording_device.h"

namespace lockstep::cuda {
namespace {

using testing::emulated_calls;
using testing::emulated_kernels;
using testing::Floats;
using ::testing::HasSubstr;
using testing::HostStream;
using testing::LogLines;
using testing::Place;
using testing::uniform;

// A stream that runs work at once, also while it says that it is recorded.
class StreamToRecord : public Stream, public HostStream {
 public:
  void synchronize() override {}
  void* native() const override { return static_cast<HostStream*>(const_cast<StreamToRecord*>(this)); }
  void push(std::string, std::function<void()> work) override { work(); }
  bool is_capturing() const override { return recorded; }
  bool is_recorded() const override { return recorded; }
  Buffer take_scratch(std::size_t bytes) override {
    const std::align_val_t alignment{64};
    auto* const memory = static_cast<std::byte*>(::operator new(bytes, alignment));
    return Buffer(memory, bytes, nullptr, [=] { ::operator delete(memory, alignment); });
  }

  bool recorded = false;
};

// One attention forward and backward, on the emulated GPU or the plain kernels.
struct Attended {
  DType type = DType::kBFloat16;
  Index batch = 1, positions = 6, heads = 2, width = 16;
  Place place = Place::kAligned, gradient_place = Place::kAligned;
  bool accumulate = false;
  bool backward = true;

  std::vector<Floats> on(const KernelTable& kernels, Stream* stream = nullptr) const {
    testing::GuardedBench b(cpu_device(), kernels, type, testing::Values::kGiven);
    if (stream == nullptr) stream = &b.stream();
    const AttentionParams params{0.5F, true};
    const Shape shape{batch, positions, 3, heads, width}, rows{batch, positions, heads, width};
    const InputView q = b.in(shape, uniform(shape.count(), 1), place), y_grad = b.in(rows, uniform(rows.count(), 2));
    const OutputView y = b.out(rows, Floats(static_cast<std::size_t>(rows.count()))),
                     log_sums = b.floats_out({batch, heads, positions},
                                             Floats(static_cast<std::size_t>(batch * heads * positions))),
                     q_grad = b.out(shape, uniform(shape.count(), 3), accumulate, gradient_place);
    kernels.attention(params, q, {}, {}, y, log_sums, *stream);
    if (backward) kernels.attention_backward(params, q, {}, {}, y, log_sums, y_grad, q_grad, {}, {}, *stream);
    return b.results("attention");
  }
  // How many of both cuDNN computes.
  int by_cudnn() const {
    const int before = emulated_calls().attentions;
    on(emulated_kernels());
    return emulated_calls().attentions - before;
  }
  // The largest difference from the plain kernels.
  float error() const {
    const auto actual = on(emulated_kernels()), expected = on(reference_kernels());
    float worst = 0;
    for (std::size_t r = 0; r < actual.size(); ++r)
      for (std::size_t i = 0; i < actual[r].size(); ++i)
        worst = std::max(worst, std::abs(actual[r][i] - expected[r][i]));
    return worst;
  }
};

TEST(EmulatedAttention, CudnnGetsAligned16BitHeadsOfEightTimesSomething) {
  EXPECT_EQ(Attended{}.by_cudnn(), 2);
  EXPECT_EQ(Attended{.type = DType::kFloat16}.by_cudnn(), 2);
  EXPECT_EQ(Attended{.type = DType::kFloat32}.by_cudnn(), 0);
  for (const Index width : {8, 72, 128}) EXPECT_EQ(Attended{.width = width}.by_cudnn(), 2) << width;
  for (const Index width : {1, 12, 130}) EXPECT_EQ(Attended{.width = width}.by_cudnn(), 0) << width;
  EXPECT_EQ(Attended{.place = Place::kOneElementOff}.by_cudnn(), 0);
  EXPECT_EQ(Attended{.gradient_place = Place::kOneElementOff}.by_cudnn(), 2) << "into scratch memory";
  EXPECT_EQ(Attended{.accumulate = true}.by_cudnn(), 2) << "into scratch memory";
  EXPECT_THROW((Attended{.width = 264}.by_cudnn()), InvalidArgument);
}

TEST(EmulatedAttention, WhatCudnnRefusesIsComputedWithAWarningForEachShape) {
  struct {
    Attended attended;
    int by_cudnn;
    const char* reason;
  } const cases[] = {{{.positions = 5, .width = 256}, 1, "cuDNN cannot take the bfloat16 causal attention's gradient"},
                     {{.positions = 5, .heads = 5}, 0, "CUDNN_STATUS_NOT_SUPPORTED"},
                     {{.positions = 5, .heads = 6}, 1, "no deterministic engine"},
                     {{.positions = 1}, 1, "s_q = s_kv = 1"}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.reason);
    LogLines lines;
    EXPECT_EQ(each.attended.by_cudnn(), each.by_cudnn);
    EXPECT_THAT(lines.text(), HasSubstr(each.reason));
    EXPECT_THAT(lines.text(), HasSubstr("A kernel without tensor cores computes it instead"));
    EXPECT_EQ(lines.text().find(env::kCudnnNondeterministic) != std::string::npos, each.attended.heads == 6);
    LogLines again;
    EXPECT_LT(each.attended.error(), 0.02F);
    EXPECT_EQ(again.text(), "");
  }
}

TEST(EmulatedAttention, ADriverThatFailsIsNoMissingEngine) {
  EXPECT_THAT(message_of([] { Attended{.heads = 7}.by_cudnn(); }), HasSubstr("CUDNN_STATUS_INTERNAL_ERROR"));
}

TEST(EmulatedAttention, AFirstUseInACaptureIsRefused) {
  StreamToRecord stream;
  const Attended forward{.positions = 11, .backward = false}, both{.positions = 11};
  const auto run = [&](const Attended& attended) {
    return message_of([&] { attended.on(emulated_kernels(), &stream); });
  };
  stream.recorded = true;
  EXPECT_THAT(run(forward), HasSubstr("the bfloat16 causal attention of 1 x 11 queries, 11 keys, 2 heads of 16, packed "
                                      "runs for the first time while a graph is captured"));
  stream.recorded = false;
  run(forward);
  stream.recorded = true;
  EXPECT_THAT(run(both), HasSubstr("attention's gradient"));
  stream.recorded = false;
  run(both);
  stream.recorded = true;
  EXPECT_EQ(run(both), "nothing was thrown");
}

TEST(EmulatedAttention, APartIsAsLargeAsMemoryAllows) {
  const AttentionShape shape{10, 64, 64, 12, 64, true};
  const auto parts = [&](std::int64_t most, std::int64_t bytes, const AttentionShape& s) {
    const AttentionPart part = part_within(most, bytes, s);
    return std::pair(part.samples, part.heads);
  };
  EXPECT_EQ(parts(1000, 1000, shape), std::pair(Index{10}, Index{12}));
  EXPECT_EQ(parts(600, 1200, shape), std::pair(Index{5}, Index{12}));
  EXPECT_EQ(parts(599, 1200, shape), std::pair(Index{4}, Index{12}));
  EXPECT_EQ(parts(119, 1200, shape), std::pair(Index{1}, Index{11}));
  EXPECT_EQ(parts(0, 1200, shape), std::pair(Index{1}, Index{1}));
  AttentionShape odd = shape;
  odd.queries = 63;  // every fourth head begins at an aligned address in the statistics
  EXPECT_EQ(parts(119, 1200, odd), std::pair(Index{1}, Index{8}));
  EXPECT_EQ(parts(0, 1200, odd), std::pair(Index{1}, Index{4}));
  odd.heads = 2;  // every second sample
  EXPECT_EQ(parts(100, 200, odd), std::pair(Index{4}, Index{2}));
  EXPECT_EQ(parts(0, 200, odd), std::pair(Index{2}, Index{2}));
  odd.batch = 1;
  EXPECT_EQ(parts(0, 200, odd), std::pair(Index{1}, Index{2}));
}

// The gradient of 64 positions needs 8 KiB for each of 3 * 200 heads, and gets 4 MiB, for at most 512 of them: two
// parts. Without memory, each part is as small as alignment allows: a head, four heads, four samples.
TEST(EmulatedAttention, AGradientWithMuchWorkspaceGoesInParts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in separate processes, because settings are read once
  const auto check = [](const char* mib, const Attended& attended, int expected) {
    setenv(env::kCudaWorkspace, mib, 1);
    const int calls = attended.by_cudnn();
    const float error = attended.error();
    std::fprintf(stderr, "%d calls, error %g\n", calls, static_cast<double>(error));
    std::_Exit(calls == expected && error < 0.05F ? 0 : 1);
  };
  EXPECT_EXIT(check("1", {.batch = 3, .positions = 64, .heads = 200, .width = 8}, 1 + 2), ::testing::ExitedWithCode(0),
              "");
  EXPECT_EXIT(check("0", {.batch = 2, .positions = 8, .heads = 3}, 6 + 6), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(check("0", {.batch = 2, .positions = 9, .heads = 8}, 4 + 4), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(check("0", {.batch = 5, .positions = 9, .heads = 3}, 2 + 2), ::testing::ExitedWithCode(0), "");
}

TEST(EmulatedAttention, HasTheSameBitsUnlessTheEnvironmentSaysOtherwise) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto is_same = [] { return Attended{}.on(emulated_kernels()) == Attended{}.on(emulated_kernels()) ? 1 : 0; };
  EXPECT_EXIT(std::_Exit(is_same()), ::testing::ExitedWithCode(1), "");
  const auto nondeterministic = [&] {
    unsetenv(env::kDeterministic);  // which found_gpu()'s header sets
    std::_Exit(is_same());
  };
  EXPECT_EXIT(nondeterministic(), ::testing::ExitedWithCode(0), "");
}

TEST(EmulatedAttention, RecentGraphsKeepWhatACaptureMayHold) {
  RecentGraphs<int, int> graphs(3);
  StreamToRecord stream;
  int built = 0;
  const auto get = [&](int key) {
    return *graphs.get(
        key, stream, [&] { return ++built, std::make_unique<int>(key); }, [] { return "this"; });
  };
  for (const int key : {1, 2, 3, 1, 4}) EXPECT_EQ(get(key), key);
  EXPECT_EQ(built, 4);
  EXPECT_EQ(graphs.size(), 3U);
  for (const int key : {1, 3, 4}) get(key);
  EXPECT_EQ(built, 4) << "2 was used longest ago";
  stream.recorded = true;
  for (const int key : {1, 3}) get(key);
  EXPECT_THAT(message_of([&] { get(5); }), HasSubstr("this runs for the first time while a graph is captured"));
  stream.recorded = false;
  for (const int key : {4, 5, 6, 1, 3}) get(key);
  EXPECT_EQ(built, 6) << "5 took the place of 4, and 6 that of 5";
  stream.recorded = true;
  get(6);
  stream.recorded = false;
  get(7);
  EXPECT_EQ(graphs.size(), 4U) << "all others are held";
  RecentGraphs<int, int> of_none(1);
  EXPECT_EQ(of_none.get(
                1, stream, [] { return std::unique_ptr<int>(); }, [] { return ""; }),
            nullptr);
}

}  // namespace
}  // namespace lockstep::cuda
