// The table of capabilities, and calls or backends that are not in it: the same error on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "lockstep/comm/backend_context.h"
#include "lockstep/comm/process_group.h"
#include "src/comm/group/backend_choice.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/testing/recording_backend.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/exact_data.h"
#if LOCKSTEP_WITH_MPI
#include "src/comm/mpi/mpi_backend.h"
#endif

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

BackendContext context_of(const Place& place, std::shared_ptr<Store> store) {
  BackendContext context;
  context.place = place;
  context.store = std::move(store);
  context.token = "secret";
  context.transport = "auto";
  context.advertise_address = "127.0.0.1";
  context.timeout = context.store_timeout = std::chrono::seconds(20);
  return context;
}

// -- capabilities that a backend lacks

// A backend with fewer operations, types and reductions, and without messages.
class Poor : public RecordingBackend {
 public:
  Poor() : RecordingBackend(make_local_backend()) {
    poor_.operations = poor_.operations.without({OperationKind::kAllToAllV});
    poor_.types = {DType::kFloat32, DType::kInt32};
    poor_.reductions = poor_.reductions.without({ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor});
    poor_.moves_data = true;
  }
  std::string_view name() const override { return "poor"; }
  const Capabilities& capabilities() const override { return poor_; }

 private:
  Capabilities poor_;
};

TEST(BackendThatLacksSomething, RefusesItOnAllRanksWithWhatThereIs) {
  for (const int rank : {0, 1}) {
    const auto group = ProcessGroup::wrap({rank, 2, rank, 2}, std::make_unique<Poor>());
    std::int32_t number = 0;
    double wide = 0;
    const std::vector<std::size_t> none = {0, 0};
    const auto refusal = [](const std::function<void()>& call) { return outcome_of(call).text; };
    EXPECT_EQ(refusal([&] { group->all_reduce(&number, 1, DType::kInt32, ReduceOp::kBitXor); })
                  .find("all_reduce of int32: backend 'poor' does not support the reduction bit_xor; it supports sum, "
                        "avg, product, min, max, premul_sum; choose another backend for it: host"),
              0u);
    EXPECT_THAT(refusal([&] { group->all_reduce(&wide, 1, DType::kFloat64); }),
                AllOf(HasSubstr("all_reduce: backend 'poor' does not support float64; it supports float32, int32; "),
                      HasSubstr("host")));
    EXPECT_THAT(refusal([&] { group->broadcast(&wide, 1, DType::kFloat64, 0); }),
                HasSubstr("does not support float64"));
    EXPECT_THAT(
        refusal([&] { group->all_to_all(&number, none, &wide, none, DType::kInt32); }),
        AllOf(
            HasSubstr("all_to_all_v: backend 'poor' does not support this operation; it supports barrier, broadcast, "),
            Not(HasSubstr("all_to_all_v,"))));
    EXPECT_THAT(refusal([&] { group->send(&number, 1, DType::kInt32, 1 - rank); }),
                AllOf(HasSubstr("send to rank"),
                      HasSubstr("backend 'poor' does not support messages; choose another backend for it: host")));
    EXPECT_THAT(refusal([&] { group->recv(&number, 1, DType::kInt32, kAnyRank); }), HasSubstr("recv from any rank"));
    EXPECT_THAT(recorded(group->backend()).calls(), ::testing::IsEmpty());
    EXPECT_THAT(recorded(group->backend()).messages(), ::testing::IsEmpty());
    group->all_reduce(&number, 1, DType::kInt32, ReduceOp::kMax);
    group->barrier();
    ASSERT_EQ(recorded(group->backend()).calls().size(), 2u);
    EXPECT_EQ(recorded(group->backend()).calls()[0].operation.signature.sequence, 1u)
        << "a refused call is not numbered";
  }
}

TEST(BackendThatLacksSomething, DelayHasNoMessages) {
  const auto group = ProcessGroup::wrap({}, make_backend("delay", {}));
  std::int32_t number = 0;
  EXPECT_THAT(outcome_of([&] { group->send(&number, 1, DType::kInt32, 0); }).text,
              HasSubstr("backend 'delay' does not support messages"));
}

// -- the list

TEST(BackendList, TheDefaultComesFirst) {
  ASSERT_FALSE(backend_names().empty());
  EXPECT_EQ(backend_names()[0], "host");
}

TEST(BackendList, TheFormerNameOfHostIsUnderstood) { EXPECT_EQ(&capabilities_of("ring"), &capabilities_of("host")); }

TEST(BackendList, TheFormerNameOfHostInTheEnvironmentServesAWorldOfOneToo) {
  setenv("LOCKSTEP_BACKEND", "ring", 1);
  EXPECT_EQ(choose_backends({0, 1, 0, 1}, "", cpu_device()).host, "local");
  EXPECT_EQ(choose_backends({0, 2, 0, 2}, "", cpu_device()).host, "ring");
  unsetenv("LOCKSTEP_BACKEND");
}

TEST(BackendList, GlooIsPyTorchsNameOfHost) {
  EXPECT_EQ(capabilities_of("gloo").messages, capabilities_of("host").messages);
  EXPECT_EQ(make_backend("gloo", context_of({0, 1, 0, 1}, nullptr))->name(), "host");
  EXPECT_EQ(choose_backends({1, 2, 1, 2}, "gloo", cpu_device()).host, "host");
  EXPECT_NO_THROW(check_backend("gloo", {0, 2, 0, 2}));
  EXPECT_THROW(make_backend("Gloo", context_of({0, 1, 0, 1}, nullptr)), InvalidArgument);
}

TEST(BackendList, AnUnknownNameIsAnsweredWithTheOnesThereAre) {
  for (const int rank : {0, 1}) {
    const Outcome outcome = outcome_of([rank] { make_backend("pigeon", context_of({rank, 2, rank, 2}, nullptr)); });
    EXPECT_THAT(outcome.text, HasSubstr("unknown backend 'pigeon': LOCKSTEP_BACKEND is one of host, "));
    for (const std::string_view name : backend_names()) EXPECT_THAT(outcome.text, HasSubstr(std::string(name)));
  }
  EXPECT_THROW(capabilities_of("pigeon"), InvalidArgument);
}

#if LOCKSTEP_WITH_MPI
// Two ranks of `mpi` in one process, which the backend does not support.
std::vector<Outcome> outcomes_of_two_threads() {
  const auto store = std::make_shared<TableStore>();
  std::vector<Outcome> outcomes(2);
  const auto join = [&](int rank) {
    outcomes[static_cast<std::size_t>(rank)] = outcome_of([&] {
      make_backend("mpi", context_of({rank, 2, rank, 2}, store));
    });
  };
  std::thread other(join, 1);
  join(0);
  other.join();
  return outcomes;
}

TEST(BackendList, MpiWithoutMpirunSaysWhatToDo) {
  ASSERT_EQ(mpi_ranks(), 0) << "this test is not for mpirun";
  const std::vector<Outcome> outcomes = outcomes_of_two_threads();
  for (std::size_t rank : {0U, 1U})
    EXPECT_THAT(outcomes[rank].text,
                AllOf(HasSubstr(fmt::format("backend mpi: rank {}: this process was not started by MPI", rank)),
                      HasSubstr("mpirun -n 2"), HasSubstr("LOCKSTEP_BACKEND=host")));
}
#else
TEST(BackendList, MpiInABuildWithoutSaysHowToGetIt) {
  for (const int rank : {0, 1}) {
    const Outcome outcome = outcome_of([rank] { make_backend("mpi", context_of({rank, 2, rank, 2}, nullptr)); });
    EXPECT_THAT(outcome.text,
                AllOf(HasSubstr("backend 'mpi' is not in this build"), HasSubstr("-Dmpi=enabled"), HasSubstr("host")));
  }
}
#endif

TEST(BackendList, WhatMovesNoDataIsForAWorldOfOne) {
  for (const char* name : {"local", "delay"}) {
    EXPECT_EQ(capabilities_of(name).most_ranks, 1);
    const Outcome outcome = outcome_of([name] { make_backend(name, context_of({0, 2, 0, 2}, nullptr)); });
    EXPECT_THAT(outcome.text, AllOf(HasSubstr(name), HasSubstr("for a world of one, this one has 2 ranks")));
  }
}

// -- recording, around the ring

TEST(Recording, KeepsWhatWasAskedInItsOrder) {
  run_threads({.wire = Wire::kRecording, .ranks = 2}, [](Rank& rank) {
    float values[4] = {1, 2, 3, 4};
    rank.all_reduce(values, 4);
    EXPECT_EQ(values[3], 8);
    const Work work = rank.backend().start(rank.reduction(values, 2, DType::kFloat32, ReduceOp::kMax));
    std::int32_t number = rank.rank(), other = -1;
    const Work sent =
        rank.backend().send({&number, 1, DType::kInt32, 1 - rank.rank(), 5, nullptr, std::chrono::seconds(20)});
    rank.backend().receive({&other, 1, DType::kInt32, 1 - rank.rank(), 5, nullptr, std::chrono::seconds(20)}).wait();
    sent.wait();
    EXPECT_EQ(other, 1 - rank.rank());
    RecordingBackend& backend = recorded(rank.backend());
    EXPECT_EQ(backend.calls().size(), 2u);
    EXPECT_FALSE(backend.calls()[1].is_complete) << "no one has waited for it";
    work.wait();
    const auto calls = backend.calls();
    EXPECT_EQ(calls[0].operation.signature.op, ReduceOp::kSum);
    EXPECT_EQ(calls[0].operation.receive, values);
    EXPECT_FALSE(calls[0].is_async);
    EXPECT_EQ(calls[1].operation.signature.op, ReduceOp::kMax);
    EXPECT_TRUE(calls[1].is_async);
    EXPECT_EQ(backend.completed(), 2u);
    for (const RecordedCall& call : calls) EXPECT_LE(call.issued, call.completed);
    EXPECT_LE(calls[0].completed, calls[1].issued);
    const auto messages = backend.messages();
    ASSERT_EQ(messages.size(), 2u);
    EXPECT_FALSE(messages[0].is_receive);
    EXPECT_TRUE(messages[1].is_receive);
    EXPECT_EQ(messages[1].message.tag, 5);
  });
}

TEST(Recording, OthersHaveNothingToTell) {
  const auto local = make_local_backend();
  EXPECT_THAT(outcome_of([&] { recorded(*local); }).text, HasSubstr("backend 'local' does not record calls"));
}

// -- the table of docs/collectives.md

TEST(CollectivesPage, ItsTableOfBackendsIsTheTable) {
  std::ifstream file(std::string(LOCKSTEP_SOURCE_ROOT) + "/docs/collectives.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto mark = [](bool has) { return has ? "yes" : "no"; };
  for (const std::string_view name : backend_names()) {
    const Capabilities& has = capabilities_of(name);
    const std::string row =
        fmt::format("| `{}` | {} | {} | {} | {} | {} | {} | {} |", name,
                    has.most_ranks == 1        ? "one"
                    : has.ranks_may_be_threads ? "processes, threads"
                                               : "processes",
                    mark(has.messages), mark(has.same_bits_on_all_ranks && has.repeatable_bits),
                    mark(has.sums_in_rank_order), mark(has.idle_waiting), mark(has.abort), mark(has.names_lost_peers));
    EXPECT_NE(page.find(row), std::string::npos) << "docs/collectives.md has no row that begins\n" << row;
  }
}

// -- mpi

#if LOCKSTEP_WITH_MPI

class Processes : public OverBackends {
 protected:
  Place place() const {
    const int rank = started_job().place.rank;
    return {rank, mpi_ranks(), rank, mpi_ranks()};
  }
};

// Like calls above 2^31 - 1 elements, with a limit that tests can reach.
TEST_P(Processes, CallsBeyondMpisCountsAreCutIntoPiecesOrRefused) {
  const Place here = place();
  Rank rank(here, make_mpi_backend(context_of(here, next_store_of_job()), 1000), std::chrono::seconds(20));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64})
    for (const std::size_t count :
         {std::size_t{999}, std::size_t{1000}, std::size_t{1001}, std::size_t{2000}, std::size_t{3007}}) {
      std::vector<std::byte> data(count * size_of(dtype)), expected(data.size());
      for (std::size_t i = 0; i < count; ++i) {
        store(data.data(), i, dtype, value_at(here.rank, here.world_size, i, dtype, ReduceOp::kSum));
        store(expected.data(), i, dtype, expected_at(here.world_size, i, dtype, ReduceOp::kSum));
      }
      rank.all_reduce(data.data(), count, dtype);
      EXPECT_EQ(first_difference(data.data(), expected.data(), count, dtype), -1) << name_of(dtype) << " x " << count;
      if (here.rank != 0) std::fill(data.begin(), data.end(), std::byte{7});
      rank.broadcast(data.data(), count, dtype, 0);
      EXPECT_EQ(data, expected) << name_of(dtype) << " x " << count;
    }
  std::vector<std::byte> part(1001), all(1001 * static_cast<std::size_t>(here.world_size));
  const Outcome outcome = outcome_of([&] { rank.all_gather(part.data(), all.data(), part.size(), DType::kUInt8); });
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("all_gather #"), HasSubstr("at most 1000 elements")));
}

TEST_P(Processes, DisagreementIsNamedOnAllRanksAndHarmsNoOtherGroup) {
  if (ranks() == 1) return;
  const Place here = place();
  Rank first(here, make_backend("mpi", context_of(here, next_store_of_job())), std::chrono::seconds(20));
  Rank second(here, make_backend("mpi", context_of(here, next_store_of_job())), std::chrono::seconds(20));
  float values[200] = {};
  const Outcome outcome = outcome_of([&] { first.all_reduce(values, here.rank == 1 ? 100 : 200); });
  EXPECT_EQ(outcome.kind, "mismatch");
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank 0: all_reduce #1 (float32 x 200, sum)"),
                                  HasSubstr("rank 1: all_reduce #1 (float32 x 100, sum)")));
  EXPECT_EQ(outcome_of([&] { first.barrier(); }).kind, "mismatch") << "the group is over";
  EXPECT_EQ(outcome_of([&] { second.barrier(); }).kind, "none");
}

// Through the interface of groups, with a different number for a rank in each group: key -rank reverses the order.
TEST_P(Processes, SubGroupsHaveRanksOfTheirOwn) {
  const auto group = ProcessGroup::create(place(), next_store_of_job(), "secret", {.backend = "mpi"});
  const int n = group->world_size(), color = group->rank() % 2;
  const auto half = group->split(color, -group->rank());
  const auto turned = group->split(0, -group->rank());
  ASSERT_EQ(turned->rank(), n - 1 - group->rank());
  std::vector<std::int32_t> by_rank(static_cast<std::size_t>(half->world_size()), -1);
  const std::int32_t mine = group->rank();
  half->all_gather(&mine, by_rank.data(), 1, DType::kInt32);
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    EXPECT_EQ(by_rank[i] % 2, color);
    if (i > 0) {
      EXPECT_EQ(by_rank[i], by_rank[i - 1] - 2);
    }
  }
  std::int32_t of_root = mine;
  turned->broadcast(&of_root, 1, DType::kInt32, 0);
  EXPECT_EQ(of_root, n - 1);
  std::int32_t got = -1;
  const Work sent = turned->send_async(&mine, 1, DType::kInt32, (turned->rank() + 1) % n, 3);
  EXPECT_EQ(turned->recv(&got, 1, DType::kInt32, kAnyRank, 3), (turned->rank() + n - 1) % n);
  sent.wait();
  EXPECT_EQ(got, (mine + 1) % n);
  EXPECT_EQ(group->all_gather_text(std::string(static_cast<std::size_t>(mine), 'x')).back().size(),
            static_cast<std::size_t>(n - 1));
  float one = 1;
  group->all_reduce(&one, 1, DType::kFloat32, ReduceOp::kPremulSum, {.factor = 0.5});
  EXPECT_EQ(one, 0.5f * static_cast<float>(n));
  EXPECT_EQ(outcome_of([&] { group->broadcast(&one, 1, DType::kFloat32, n); }).text,
            fmt::format("broadcast: root {} does not exist, the group has ranks 0..{}", n, n - 1));
}

// The type and count at both ends are compared, although MPI does not compare types.
TEST_P(Processes, MessagesThatDisagreeAreNamedByTheReceiver) {
  const Place here = place();
  Rank rank(here, make_backend("mpi", context_of(here, next_store_of_job())), std::chrono::seconds(20));
  std::int32_t values[2] = {};
  const Message sent{values, 1, DType::kInt32, here.rank, 2, nullptr, std::chrono::seconds(5)};
  Message wanted = sent;
  wanted.dtype = DType::kFloat32;
  rank.backend().send(sent).wait();
  const Outcome outcome = outcome_of([&] { rank.backend().receive(wanted).wait(); });
  EXPECT_EQ(outcome.kind, "mismatch");
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("int32 x 1 with tag 2"), HasSubstr("which receives float32 x 1")));
  EXPECT_EQ(outcome_of([&] { rank.barrier(); }).kind, "mismatch") << "the group is over on this rank";
}

TEST_P(Processes, AGroupThatIsNotMpisRanksIsRefused) {
  const Place here = place();
  const int more = here.world_size + 1;
  const Outcome outcome = outcome_of([&] {
    make_backend("mpi", context_of({here.rank, more, here.rank, more}, next_store_of_job()));
  });
  EXPECT_EQ(outcome.text.find(fmt::format("backend mpi: rank 0: the group has {} ranks, but mpirun started {}", more,
                                          here.world_size)),
            0u)
      << outcome.text;
}

TEST_P(Processes, RanksThatAreThreadsOfOneAreRefused) {
  if (ranks() == 1) return;  // mpirun started too few for two
  for (const Outcome& outcome : outcomes_of_two_threads())
    EXPECT_THAT(outcome.text, HasSubstr(fmt::format("ranks 0 and 1 are both process {} of MPI", place().rank)));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Processes);  // without mpirun
INSTANTIATE_TEST_SUITE_P(Mpi, Processes, ::testing::ValuesIn(mpi_cases()), name_of_case);

#endif

}  // namespace
}  // namespace lockstep::testing
