// The nccl backend on a GPU simulated by threads and an NCCL stub that fails on demand: needs no GPU.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "lockstep/core/error.h"
#include "src/comm/call/continuation.h"
#include "src/comm/host/host_backend.h"
#include "src/comm/host/machine/thread_memory_provider.h"
#include "src/comm/host/shm/shm_transport.h"
#include "src/comm/nccl/nccl_backend.h"
#include "src/comm/nccl/nccl_communicator.h"
#include "tests/nccl/gpu_ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kNothing = "nothing was thrown";

class Nccl : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(stub().communicators.load(), 0);
    EXPECT_EQ(stub().allocations.load(), 0);
    EXPECT_EQ(stub().reductions_made.load(), 0);
    stub().fail_call.store(nullptr);
    stub().async_error.store(0);
    stub().stall.store(false);
    stub().polls_until_ready.store(3);
  }
};

TEST_F(Nccl, TheHostQueuesAndDoesNotWait) {
  const auto said = run_ranks(2, [](GpuRank& rank) {
    const Buffer memory = rank.backend.allocate(4096);
    auto* const data = reinterpret_cast<float*>(memory.data());
    rank.device.hold_default_stream();  // the GPU lags behind: backward is still running
    rank.device.kernels().fill({data, {1024}}, static_cast<float>(rank.place.rank + 1), rank.device.default_stream());
    const Work work = rank.backend.start(rank.all_reduce(data, 1024));
    EXPECT_FALSE(work.done());
    work.stream_wait(rank.device.default_stream());
    rank.device.kernels().scale({data, {1024}}, 2, {data, {1024}}, rank.device.default_stream());
    EXPECT_FALSE(work.done()) << "the host came here while nothing has run";
    rank.device.release_default_stream();
    rank.device.default_stream().synchronize();
    for (int i = 0; i < 1024; ++i) ASSERT_EQ(data[i], 6.0F) << i;
  });
  EXPECT_THAT(said, Each(kNothing));
}

TEST_F(Nccl, TheOrderOfLaunchesAndEventsIsTheOneOfTheDesign) {
  run_ranks(1, [](GpuRank& rank) {
    float* const data = rank.memory.data();
    rank.device.clear_log();
    rank.device.hold_default_stream();  // otherwise it may complete before its end is checked
    rank.device.kernels().fill({data, {4}}, 1, rank.device.default_stream());
    const Work work = rank.backend.start(rank.all_reduce(data, 4));
    work.stream_wait(rank.device.default_stream());
    rank.device.kernels().scale({data, {4}}, 2, {data, {4}}, rank.device.default_stream());
    rank.device.release_default_stream();
    rank.device.default_stream().synchronize();
    EXPECT_THAT(rank.device.log(),
                ElementsAre("stream 0: fill", "stream 0: record", "stream 1: wait", "stream 1: ncclAllReduce",
                            "stream 1: record", "stream 0: wait", "stream 0: scale"));
  });
}

// A continuation's kernels run on the stream of the operations, after the call; those of the default stream continue
// meanwhile.
TEST_F(Nccl, ContinuationsAreQueuedAtOnceOnTheStreamOfTheCalls) {
  const auto said = run_ranks(2, [](GpuRank& rank) {
    const Buffer memory = rank.backend.allocate(4096);
    auto* const data = reinterpret_cast<float*>(memory.data());
    const KernelTable& kernels = rank.device.kernels();
    rank.device.hold_default_stream();
    kernels.fill({data, {1024}}, static_cast<float>(rank.place.rank + 1), rank.device.default_stream());
    const Work first = rank.backend.start(rank.all_reduce(data, 1024));
    bool has_run = false;
    Operation chained = rank.all_reduce(data, 1024);
    chained.chained = {[&](Stream& stream) {
                         has_run = true;
                         kernels.scale({data, {1024}}, 10, {data, {1024}}, stream);
                         running_continuation()->has_made_it = true;  // as the group does
                         Operation call = rank.all_reduce(data, 1024);
                         call.signature.sequence = --rank.sequence;
                         return rank.backend.start(call);
                       },
                       &rank, true};
    const Work follower = rank.backend.start_chained(chained, first);
    EXPECT_TRUE(has_run);
    Operation computation = chained;
    computation.chained = {[&](Stream& stream) {
                             kernels.scale({data, {1024}}, 2, {data, {1024}}, stream);
                             return Work();
                           },
                           &rank, false};
    const Work computed = rank.backend.start_chained(computation, follower);
    EXPECT_FALSE(computed.done()) << "the host came here while nothing has run";
    rank.device.release_default_stream();
    computed.wait();
    EXPECT_TRUE(first.done() && follower.done());
    for (int i = 0; i < 1024; ++i) ASSERT_EQ(data[i], 3.0F * 10 * 2 * 2) << i;
    computation.chained.run = [](Stream&) -> Work { throw Error("no memory for factors"); };
    rank.backend.start_chained(computation, computed);
  });
  EXPECT_THAT(said, Each(HasSubstr("no memory for factors")));
}

TEST_F(Nccl, RegisteredMemoryIsNcclsAndZeroed) {
  const auto said = run_ranks(2, [](GpuRank& rank) {
    const Buffer memory = rank.backend.allocate(1027);
    rank.device.default_stream().synchronize();
    for (std::size_t i = 0; i < memory.bytes(); ++i) ASSERT_EQ(memory.data()[i], std::byte{0}) << i;
    EXPECT_GE(stub().registrations.load(), 1);
  });
  EXPECT_THAT(said, Each(kNothing));
}

TEST_F(Nccl, OtherCallsOnOtherRanksAreNamedWithBothSides) {
  const auto said = run_ranks(2, [](GpuRank& rank) {
    float* const data = rank.memory.data();
    auto call = rank.all_reduce(data, rank.place.rank == 0 ? 8 : 4);
    call.purpose = {"bucket", rank.place.rank};
    call.signature.purpose_index = call.purpose.index;
    rank.backend.start(call).wait();
  });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("the ranks make different calls"),
                               HasSubstr("rank 0: all_reduce #1 (bucket 0, float32 x 8"),
                               HasSubstr("rank 1: all_reduce #1 (bucket 1, float32 x 4"))));
}

TEST_F(Nccl, AMissingRankIsNamedAtTheDeadlineAndTheKernelsThatWaitForItEnd) {
  const auto said = run_ranks(2, [](GpuRank& rank) {
    float* const data = rank.memory.data();
    if (rank.place.rank == 1) {
      std::this_thread::sleep_for(milliseconds(1500));
      return;
    }
    rank.backend.start(rank.all_reduce(data, 8, milliseconds(300))).wait();
  });
  EXPECT_THAT(said[0], HasSubstr("rank 1"));
  EXPECT_THAT(said[0], HasSubstr("did not arrive"));
  EXPECT_GE(stub().aborts.load(), 1);
}

TEST_F(Nccl, ARankThatLeftIsNamed) {
  const auto said = run_ranks(2, [](GpuRank& rank) {
    float* const data = rank.memory.data();
    if (rank.place.rank == 1) return;
    rank.backend.start(rank.all_reduce(data, 8)).wait();
  });
  EXPECT_THAT(said[0], AllOf(HasSubstr("rank 1"), HasSubstr("left")));
}

TEST_F(Nccl, AGpuThatDoesNotFinishEndsAtTheDeadline) {
  stub().stall.store(true);
  const auto said = run_ranks(2, [](GpuRank& rank) {
    float* const data = rank.memory.data();
    rank.backend.start(rank.all_reduce(data, 8, milliseconds(300))).wait();
  });
  for (const std::string& each : said) EXPECT_NE(each, kNothing);
  EXPECT_THAT(said[0] + said[1], HasSubstr("has not finished it in 0.3 s"));
}

TEST_F(Nccl, AbortWakesAllRanks) {
  stub().stall.store(true);
  const auto said = run_ranks(3, [](GpuRank& rank) {
    float* const data = rank.memory.data();
    const Work work = rank.backend.start(rank.all_reduce(data, 8));
    if (rank.place.rank == 1) rank.backend.abort("the user pressed stop");
    work.wait();
  });
  EXPECT_THAT(said, Each(HasSubstr("the user pressed stop")));
}

TEST_F(Nccl, AnErrorOfNcclBetweenCallsEndsTheWait) {
  const auto said = run_ranks(2, [](GpuRank& rank) {
    float* const data = rank.memory.data();
    rank.backend.start(rank.all_reduce(data, 8)).wait();
    stub().stall.store(true);
    const Work work = rank.backend.start(rank.all_reduce(data, 8));
    stub().async_error.store(ncclRemoteError);
    work.wait();
  });
  EXPECT_THAT(said[0] + said[1], HasSubstr("remote process exited or there was a network error: said by the stub"));
  for (const std::string& each : said) EXPECT_NE(each, kNothing);
}

// Calls in a graph are not compared between the ranks: the others end because the first failure is reported to them.
TEST_F(Nccl, AFailureWhileAGraphIsRecordedEndsTheGroupWithItsReason) {
  const std::string reason = "NCCL: ncclAllReduce failed: invalid usage";
  const auto said = run_ranks(2, [&](GpuRank& rank) {
    if (rank.place.rank == 1) return rank.backend.start(rank.call(OperationKind::kBarrier, nullptr, nullptr, 0)).wait();
    float* const data = rank.memory.data();
    rank.backend.begin_capture();
    stub().fail_result.store(ncclInvalidUsage);
    stub().fail_call.store("ncclAllReduce");
    EXPECT_THAT(message_of([&] { rank.backend.start(rank.all_reduce(data, 8)); }), HasSubstr(reason));
    EXPECT_THAT(message_of([&] { rank.backend.start(rank.all_reduce(data, 8)); }), HasSubstr(reason))
        << "and not that it was aborted";
    rank.backend.end_capture();
    rank.backend.start(rank.all_reduce(data, 8)).wait();
  });
  EXPECT_THAT(said, Each(HasSubstr(reason)));
}

TEST_F(Nccl, AFirstCallThatWaitsForPeersEndsAtItsDeadlineAndWhenOneHasGone) {
  const auto late = run_ranks(2, [](GpuRank& rank) {
    rank.backend.start(rank.call(OperationKind::kBarrier, nullptr, nullptr, 0)).wait();
    stub().polls_until_ready.store(kForEver);
    float* const data = rank.memory.data();
    rank.backend.start(rank.all_reduce(data, 8, milliseconds(300))).wait();
  });
  EXPECT_THAT(late[0] + late[1], HasSubstr("waited 0.3 s for its peers"));
  stub().polls_until_ready.store(3);
  const auto gone = run_ranks(2, [](GpuRank& rank) {
    rank.backend.start(rank.call(OperationKind::kBarrier, nullptr, nullptr, 0)).wait();
    stub().polls_until_ready.store(kForEver);
    float* const data = rank.memory.data();
    if (rank.place.rank == 0) rank.backend.start(rank.all_reduce(data, 8)).wait();
  });
  EXPECT_THAT(gone[0], HasSubstr("rank 1"));
}

TEST_F(Nccl, MakingACommunicatorEndsAtTheDeadlineAndWhenAPeerHasGone) {
  for (const bool blocks : {false, true}) {
    stub().polls_until_ready.store(kForEver);
    RecordingDevice device;
    const auto make = [&](milliseconds timeout, const std::function<void()>& keep_waiting) {
      ncclUniqueId id{};
      stub_api().ncclGetUniqueId(&id);
      return message_of([&] {
        const nccl::Communicator communicator(stub_api(), {0, 2, 0, 2}, device.default_stream(), id, timeout,
                                              keep_waiting, blocks);
      });
    };
    EXPECT_THAT(make(milliseconds(100), [] {}),
                HasSubstr("NCCL: ncclCommInitRankConfig of rank 0 waited 0.1 s for its peers"));
    EXPECT_THAT(make(std::chrono::seconds(20), [] { throw PeerLost("rank 1 died"); }), HasSubstr("rank 1 died"));
    stub().polls_until_ready.store(3);
    EXPECT_EQ(make(std::chrono::seconds(20), [] {}), kNothing) << "blocks: " << blocks;
  }
}

TEST_F(Nccl, ItsErrorsSayWhetherAPeersEndMayBeTheCause) {
  const auto may_be = [](ncclResult_t result) {
    try {
      nccl::throw_nccl_error(stub_api(), result, "ncclAllReduce", nullptr);
    } catch (const nccl::NcclError& error) {
      return error.may_be_a_peers_end();
    }
  };
  for (const ncclResult_t result : {ncclRemoteError, ncclSystemError, ncclInternalError})
    EXPECT_TRUE(may_be(result)) << result;
  for (const ncclResult_t result : {ncclInvalidArgument, ncclInvalidUsage, ncclUnhandledCudaError})
    EXPECT_FALSE(may_be(result)) << result;
}

// A stream that records which threads have requested it, and so use its device, and what NCCL had been told to end by
// then.
class KnownStream : public Stream {
 public:
  void synchronize() override {}
  void* native() const override {
    const std::lock_guard lock(mutex_);
    askers_.insert(std::this_thread::get_id());
    ended_ = endings() - before_;
    return nullptr;
  }
  std::size_t askers() const {
    const std::lock_guard lock(mutex_);
    return askers_.size();
  }
  int ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  static int endings() { return stub().aborts.load() + stub().finalized.load(); }
  const int before_ = endings();
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> askers_;
  mutable int ended_ = 0;
};

TEST_F(Nccl, NoThreadOfItsEndsOnTheFirstDevice) {
  ncclUniqueId id{};
  const KnownStream finished;
  {
    nccl::Communicator communicator(stub_api(), {0, 1, 0, 1}, finished, id, std::chrono::seconds(5), [] {});
    communicator.finish(std::chrono::seconds(5));
    EXPECT_EQ(finished.askers(), 1U);
    EXPECT_EQ(finished.ended(), 0) << "the device was chosen too late";
  }
  const KnownStream aborted;
  {
    const nccl::Communicator communicator(stub_api(), {0, 1, 0, 1}, aborted, id, std::chrono::seconds(5), [] {});
  }
  EXPECT_EQ(aborted.askers(), 1U);
  EXPECT_EQ(aborted.ended(), 0) << "the device was chosen too late";
}

class FailingCalls : public Nccl, public ::testing::WithParamInterface<const char*> {};
TEST_P(FailingCalls, AreNamedWithNcclsReason) {
  stub().fail_result.store(ncclSystemError);
  stub().fail_call.store(GetParam());
  // Is called for a call that is not done, if not before.
  stub().stall.store(std::string(GetParam()) == "ncclCommGetAsyncError");
  const auto said = run_ranks(1, [](GpuRank& rank) {
    const Buffer memory = rank.backend.allocate(64);
    rank.backend.start(rank.all_reduce(reinterpret_cast<float*>(memory.data()), 16)).wait();
  });
  EXPECT_THAT(said[0], HasSubstr(std::string("NCCL: ") + GetParam() + " failed: unhandled system error"));
}
INSTANTIATE_TEST_SUITE_P(All, FailingCalls,
                         ::testing::Values("ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError",
                                           "ncclMemAlloc", "ncclCommRegister", "ncclAllReduce"));

TEST(NcclApi, ALibraryThatIsNotThereIsSaidWithTheRemedy) {
  EXPECT_THAT(message_of([] { nccl::load_api("/nonexistent/libnccl.so.2"); }),
              AllOf(HasSubstr("NCCL cannot be loaded: /nonexistent/libnccl.so.2"), HasSubstr("LOCKSTEP_DEVICE=cpu")));
  EXPECT_THAT(message_of([] { nccl::load_api("libc.so.6"); }),
              HasSubstr("is not NCCL, or is older than 2.19: it lacks ncclGetVersion"));
}

}  // namespace
}  // namespace lockstep::testing
