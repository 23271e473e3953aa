// Graphs of the device interface, on the recording device: its rules are CUDA's, so that what passes here can be
// captured there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/device_training.h"
#include "tests/support/message_of.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Capture, RunsNothingUntilItIsLaunchedAndThenEveryTime) {
  RecordingDevice device;
  Stream& stream = device.default_stream();
  const Tensor sum = Tensor::full({3}, 1, device), one = Tensor::full({3}, 1, device);
  device.begin_capture(stream);
  EXPECT_TRUE(stream.is_capturing());
  device.kernels().add(sum, one, sum, stream);
  const auto graph = device.end_capture(stream);
  EXPECT_FALSE(stream.is_capturing());
  EXPECT_THAT(values_of(sum), Each(1.0F));
  graph->launch(stream);
  graph->launch(stream);
  EXPECT_THAT(values_of(sum), Each(3.0F));
}

// How communication becomes part of a graph: a stream takes part once it waits for an event of the capture, and the
// captured stream must wait for it at the end.
TEST(Capture, TakesOtherStreamsInByTheirEvents) {
  RecordingDevice device;
  const auto other = device.new_stream();
  const auto fork = device.new_event(), join = device.new_event();
  const Tensor value = Tensor::full({2}, 1, device);
  device.clear_log();
  device.begin_capture(device.default_stream());
  fork->record(device.default_stream());
  fork->stream_wait(*other);
  EXPECT_TRUE(other->is_capturing());
  device.kernels().fill(value, 5, *other);
  join->record(*other);
  join->stream_wait(device.default_stream());
  const auto graph = device.end_capture(device.default_stream());
  EXPECT_FALSE(other->is_capturing());
  EXPECT_THAT(device.log(),
              ElementsAre("captured, stream 0: record", "captured, stream 1: wait", "captured, stream 1: fill",
                          "captured, stream 1: record", "captured, stream 0: wait"));
  EXPECT_THAT(values_of(value), Each(1.0F));
  graph->launch(device.default_stream());
  EXPECT_THAT(values_of(value), Each(5.0F));
}

// The tests elsewhere only prove something if this error is noticed.
TEST(Capture, MemoryFromOutsideThatIsGivenBackInAGraphIsRefused) {
  RecordingDevice device;
  Stream& stream = device.default_stream();
  const auto fork = device.new_event(), join = device.new_event();
  const auto other = device.new_stream();
  MemoryPool& pool = device.pool();
  std::byte* const first = pool.take(512);
  std::byte* const second = pool.take_on(*other, 512);
  const auto message_of_capture = [&](auto&& work) {
    device.begin_capture(stream);
    fork->record(stream);
    fork->stream_wait(*other);
    work();
    join->record(*other);
    join->stream_wait(stream);
    return message_of([&] { device.end_capture(stream); });
  };
  EXPECT_THAT(message_of_capture([&] { pool.give_back(first, 512); }),
              HasSubstr("memory from outside of a graph was given back in it"));
  EXPECT_THAT(message_of_capture([&] { pool.give_back_on(*other, second, 512); }), HasSubstr("was given back in it"));
  EXPECT_THAT(message_of_capture([&] { EXPECT_THROW(pool.settle(0), InvalidArgument); }),
              HasSubstr("was given back in it"));
  EXPECT_EQ(device.counts().allocation_nodes, 0);
  std::byte *third = nullptr, *fourth = nullptr;
  EXPECT_NO_THROW(message_of_capture([&] { third = pool.take(1024), fourth = pool.take_on(*other, 512); }));
  EXPECT_EQ(device.counts().allocation_nodes, 2);
  for (std::byte* const block : {first, second}) EXPECT_NE(block, nullptr);
  pool.give_back(third, 1024);
  pool.give_back_on(*other, fourth, 512);
}

TEST(Capture, AStreamThatIsNotWaitedForMakesNoGraph) {
  RecordingDevice device;
  const auto other = device.new_stream();
  const auto fork = device.new_event();
  const Tensor value = Tensor::full({2}, 1, device);
  device.default_stream().synchronize();
  device.begin_capture(device.default_stream());
  fork->record(device.default_stream());
  fork->stream_wait(*other);
  device.kernels().fill(value, 5, *other);
  EXPECT_THAT(message_of([&] { device.end_capture(device.default_stream()); }),
              HasSubstr("nothing orders the captured stream behind it"));
  EXPECT_FALSE(device.default_stream().is_capturing());
  EXPECT_FALSE(other->is_capturing());
  device.kernels().fill(value, 7, *other);
  other->synchronize();
  EXPECT_THAT(values_of(value), Each(7.0F)) << "both streams continue";
}

TEST(Capture, EventsMeanNothingAcrossItsEdges) {
  RecordingDevice device;
  const auto other = device.new_stream();
  const auto before = device.new_event(), within = device.new_event();
  before->record(*other);
  device.begin_capture(device.default_stream());
  EXPECT_THAT(message_of([&] { before->stream_wait(device.default_stream()); }), HasSubstr("from outside the capture"));
  within->record(device.default_stream());
  EXPECT_THAT(message_of([&] { within->done(); }), HasSubstr("the host asked for an event of a capture"));
  const auto graph = device.end_capture(device.default_stream());
  EXPECT_THAT(message_of([&] { within->stream_wait(*other); }), HasSubstr("a capture that is over"));
}

TEST(Capture, TheHostNeitherWaitsForItNorUploadsIntoIt) {
  RecordingDevice device;
  const Tensor value = Tensor::full({}, 1, device), host = Tensor::full({}, 2);
  device.begin_capture(device.default_stream());
  EXPECT_THAT(message_of([&] { value.item(); }), HasSubstr("Tensor::item: the step is being recorded"));
  EXPECT_THAT(message_of([&] { value.to(cpu_device()); }), HasSubstr("Tensor::copy_from: the step is being recorded"));
  EXPECT_THAT(message_of([&] { host.to(device); }),
              HasSubstr("4 bytes of host memory are copied to the device while a graph is recorded"));
  EXPECT_THAT(message_of([&] { device.default_stream().synchronize(); }), HasSubstr("the host cannot wait"));
  EXPECT_THAT(message_of([&] { device.begin_capture(device.default_stream()); }), HasSubstr("one at a time"));
  device.end_capture(device.default_stream());
  EXPECT_EQ(value.item(), 1);
}

// A replay uses the memory of its recording, whatever was allocated since.
TEST(Capture, TheGraphsMemoryIsNobodyElses) {
  RecordingDevice device;
  const Tensor input = Tensor::full({1000}, 1, device);
  device.begin_capture(device.default_stream());
  Tensor result = scale(scale(input, 2), 3);  // the one between is free again
  const auto graph = device.end_capture(device.default_stream());
  std::vector<Tensor> others;
  for (int i = 0; i < 8; ++i) others.push_back(Tensor::full({1000}, 9, device));
  graph->launch(device.default_stream());
  for (const Tensor& other : others) EXPECT_THAT(values_of(other), Each(9.0F));
  EXPECT_THAT(values_of(result), Each(6.0F));
}

}  // namespace
}  // namespace lockstep::testing
