// The flight recorder: its contents, reading it while it is written, and its JSON form.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "src/comm/flight/flight_dump.h"
#include "src/comm/flight/flight_log.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

Signature signature_of(std::uint64_t sequence) {
  Signature signature;
  signature.sequence = sequence;
  signature.count = sequence * 3;
  signature.kind = OperationKind::kAllReduce;
  signature.op = ReduceOp::kMax;
  signature.dtype = DType::kInt64;
  signature.purpose_index = static_cast<std::int32_t>(sequence % 7);
  return signature;
}

TEST(FlightRecorder, KeepsTheLastThousandInOrder) {
  FlightRecorder recorder;
  for (std::uint64_t i = 1; i <= 3000; ++i)
    flight::note_finished(recorder.collective(signature_of(i), {"bucket", 0}, FlightRecorder::By::kCaller));
  const FlightGroup group = recorder.snapshot({});
  ASSERT_EQ(group.operations.size(), FlightRecorder::kEntries);
  EXPECT_GE(group.operations.size(), 1000u);
  for (std::size_t i = 0; i < group.operations.size(); ++i) {
    const FlightEntry& entry = group.operations[i];
    ASSERT_EQ(entry.sequence, 3000 - FlightRecorder::kEntries + 1 + i);
    ASSERT_EQ(entry.count, entry.sequence * 3);
    ASSERT_EQ(entry.bytes, entry.count * 8);
    ASSERT_EQ(entry.purpose_index, static_cast<int>(entry.sequence % 7));
    ASSERT_EQ(entry.state, FlightState::kFinished);
    ASSERT_LE(entry.issued_ns, entry.ended_ns);
    if (i > 0) {
      ASSERT_LE(group.operations[i - 1].ended_ns, entry.issued_ns + 1000);
    }
  }
  EXPECT_EQ(describe(group.operations.back()), "all_reduce #3000 (bucket 4, int64 x 9000, max)");
}

TEST(FlightRecorder, ItsClockIsTheWallClock) {
  FlightRecorder recorder;
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const std::int64_t before = now();
  const FlightNote note = recorder.collective(signature_of(1), {}, FlightRecorder::By::kCaller);
  std::this_thread::sleep_for(20ms);
  flight::note_finished(note);
  const std::int64_t after = now();
  const FlightEntry entry = recorder.snapshot({}).operations.at(0);
  constexpr std::int64_t kSlack = 2'000'000;
  EXPECT_GE(entry.issued_ns, before - kSlack);
  EXPECT_LE(entry.ended_ns, after + kSlack);
  EXPECT_GE(entry.ended_ns - entry.issued_ns, 19'000'000);
}

TEST(FlightRecorder, TellsIssuedStartedFinishedAndFailed) {
  FlightRecorder recorder;
  std::array<FlightNote, 4> notes;
  for (std::uint64_t i = 0; i < 4; ++i)
    notes[i] = recorder.collective(signature_of(i + 1), {}, FlightRecorder::By::kLater);
  flight::note_started(notes[0]);
  flight::note_finished(notes[0]);
  flight::note_started(notes[1]);
  recorder.call_failed(notes[1], "the wire is gone");
  flight::note_started(notes[2]);
  EXPECT_EQ(recorder.collective(signature_of(5), {}, FlightRecorder::By::kCaller).slot, nullptr)
      << "a call that is refused after the end is not recorded";
  const FlightGroup group = recorder.snapshot({});
  ASSERT_EQ(group.operations.size(), 4u);
  EXPECT_EQ(group.operations[0].state, FlightState::kFinished);
  EXPECT_EQ(group.operations[1].state, FlightState::kFailed);
  EXPECT_EQ(group.operations[2].state, FlightState::kStarted);
  EXPECT_EQ(group.operations[3].state, FlightState::kIssued);
  EXPECT_EQ(group.operations[3].started_ns, 0);
  EXPECT_EQ(group.failure.value().text, "the wire is gone");
}

TEST(FlightRecorder, AMessageThatEndsAfterItsSlotWasTakenChangesNothing) {
  FlightRecorder recorder;
  const Message message{nullptr, 5, DType::kFloat32, 2, 9};
  const FlightNote old = recorder.message(message, true);
  for (std::size_t i = 0; i < FlightRecorder::kEntries; ++i) recorder.message(message, false);
  flight::note_message_finished(old);
  const FlightGroup group = recorder.snapshot({});
  ASSERT_EQ(group.messages.size(), FlightRecorder::kEntries);
  for (const FlightEntry& entry : group.messages) ASSERT_EQ(entry.state, FlightState::kStarted);
  EXPECT_EQ(describe(group.messages.front()), "send #2 to rank 2 (tag 9, float32 x 5)");
}

// Every entry that is read is consistent: count, index and number belong together.
TEST(FlightRecorder, CanBeReadWhileItIsWritten) {
  FlightRecorder recorder;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop.load(); ++i)
      flight::note_finished(recorder.collective(signature_of(i), {"bucket", 0}, FlightRecorder::By::kCaller));
  });
  std::size_t read = 0;
  for (int round = 0; round < 200 || read < 10'000; ++round)
    for (const FlightEntry& entry : recorder.snapshot({}).operations) {
      ++read;
      ASSERT_EQ(entry.count, entry.sequence * 3);
      ASSERT_EQ(entry.purpose_index, static_cast<int>(entry.sequence % 7));
    }
  stop.store(true);
  writer.join();
  EXPECT_GT(read, 0u);
}

TEST(FlightDump, SurvivesJson) {
  FlightDump dump{.job = "j",
                  .rank = 1,
                  .world_size = 4,
                  .host = "h",
                  .pid = 7,
                  .boot_id = "b",
                  .reason = "error",
                  .written_ns = 9,
                  .monotonic_ns = 8};
  FlightGroup group{
      .name = "world", .rank = 1, .world_size = 2, .members = {0, 1}, .backend = "host", .transport = "shm"};
  group.failure = FlightFailure{"not \xff UTF-8", 5};
  group.operations.push_back({.sequence = 3,
                              .operation = "reduce",
                              .dtype = "int8",
                              .count = 4,
                              .bytes = 4,
                              .reduce_op = "sum",
                              .root = 1,
                              .purpose = "bucket",
                              .purpose_index = 2,
                              .layout = 17,
                              .state = FlightState::kStarted,
                              .issued_ns = 1,
                              .started_ns = 2});
  group.messages.push_back({.sequence = 1,
                            .operation = "recv",
                            .dtype = "int8",
                            .peer = -1,
                            .tag = 3,
                            .state = FlightState::kFailed,
                            .ended_ns = 3});
  dump.groups.push_back(group);
  const FlightDump read = flight_dump_from_json(to_json(dump), "x");
  EXPECT_EQ(to_json(read), to_json(dump));
  EXPECT_EQ(describe(read.groups[0].operations[0]), "reduce #3 (bucket 2, int8 x 4, layout 00000011, sum, root 1)");
  EXPECT_EQ(describe(read.groups[0].messages[0]), "recv #1 from any rank (tag 3, int8 x 0)");
}

TEST(FlightDump, WhatIsNoneIsSaid) {
  const auto said = [](const std::string& text) {
    return message_of([&] { flight_dump_from_json(text, "rank0.json"); });
  };
  EXPECT_NE(said("{\"version\":1").find("rank0.json: incomplete flight record (broken JSON"), std::string::npos);
  EXPECT_NE(said("{}").find("rank0.json: not a flight record"), std::string::npos);
  EXPECT_NE(said("{\"version\":99}").find("format 99"), std::string::npos);
}

TEST(FlightRecorder, SaysWhatARankDoes) {
  FlightGroup group;
  EXPECT_EQ(flight::what_it_does(group, 0), "has made no call yet");
  group.operations.push_back(
      {.sequence = 1, .operation = "barrier", .state = FlightState::kFinished, .ended_ns = 1'000'000'000});
  EXPECT_EQ(flight::what_it_does(group, 3'500'000'000), "in no collective; the last, barrier #1, finished 2.5 s ago");
  group.operations.push_back(
      {.sequence = 2, .operation = "barrier", .state = FlightState::kStarted, .issued_ns = 2'000'000'000});
  EXPECT_EQ(flight::what_it_does(group, 3'500'000'000), "in barrier #2 for 1.5 s");
}

}  // namespace
}  // namespace lockstep
