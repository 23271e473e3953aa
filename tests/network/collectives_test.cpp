// Collectives between machines: exact results over good and bad links, and an error with the right rank, in time, when
// a connection stalls or is cut during an operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <tuple>

#include "lockstep/core/environment.h"
#include "tests/network/exact_calls.h"
#include "tests/network/lab_ranks.h"
#include "tests/network/stream_relay.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

struct Net {
  const char* name;
  Link link;
  int machines;
  bool ipv6;
};

using Tested = std::tuple<Net, const char*>;  // the second element is the transport
std::string name_of_tested(const ::testing::TestParamInfo<Tested>& tested) {
  return std::string(std::get<0>(tested.param).name) + "_" + std::get<1>(tested.param);
}
const auto kTransports = ::testing::Values("tcp", "hierarchical");

class BetweenMachines : public ::testing::TestWithParam<Tested> {
 protected:
  void SetUp() override {
    if (const std::string obstacle = NetworkLab::obstacle(net().link); !obstacle.empty()) GTEST_SKIP() << obstacle;
    if (net().ipv6 && !NetworkLab::has_ipv6()) GTEST_SKIP() << "this kernel has no IPv6";
  }
  static const Net& net() { return std::get<0>(GetParam()); }
  static std::string transport() { return std::get<1>(GetParam()); }
  static LabJob job() { return {.transport = transport(), .ipv6 = net().ipv6}; }
};
INSTANTIATE_TEST_SUITE_P(Nets, BetweenMachines,
                         ::testing::Combine(::testing::Values(Net{"two_machines", Link::kSwitch, 2, false},
                                                              Net{"three_machines", Link::kSwitch, 3, false},
                                                              Net{"two_machines_ipv6", Link::kSwitch, 2, true},
                                                              Net{"three_machines_relayed", Link::kRelay, 3, false},
                                                              Net{"two_machines_relayed_ipv6", Link::kRelay, 2, true}),
                                            kTransports),
                         name_of_tested);

TEST_P(BetweenMachines, ResultsAreExact) {
  const NetworkLab lab(net().machines, net().link);
  run_in(lab, job(), [](ProcessGroup& group) {
    EXPECT_EQ(group.backend().transport(), transport());
    check_calls(group, 300'001);
  });
}

// Compares the bytes that leave each machine, as the kernel counts them, with the ranks' own counters.
TEST_P(BetweenMachines, AsManyBytesLeaveAMachineAsTheFormulaSays) {
  constexpr std::size_t kCount = 3 << 18, kBytes = kCount * sizeof(float);
  const NetworkLab lab(net().machines, net().link);
  const auto machines = static_cast<std::size_t>(lab.machines()), ranks = 2 * machines;
  // tcp: each of a machine's two ranks sends each rank on the other machines its values of that rank's slice, and then
  // its own slice's result. A hierarchical rail sends its part of the machine's data around a ring of machines, twice
  // except for one slice.
  const bool is_tcp = transport() == "tcp";
  const std::size_t leaving =
      is_tcp ? 2 * 2 * (ranks - 2) * (kBytes / ranks) : 2 * (machines - 1) * (kBytes / machines);
  // Also to its neighbour.
  const std::size_t said_to_be_sent = is_tcp ? 2 * 2 * (ranks - 1) * (kBytes / ranks) : leaving;
  std::vector<std::atomic<std::uint64_t>> said(machines);
  std::vector<NetworkLab::Traffic> before(machines);
  run_in(lab, job(), [&](ProcessGroup& group) {
    std::vector<float> data(kCount, 1.0F);
    group.barrier();
    const auto machine = static_cast<std::size_t>(group.rank()) / 2;
    if (group.rank() % 2 == 0) before[machine] = lab.traffic(static_cast<int>(machine));
    group.barrier();
    const std::uint64_t sent_before = group.backend().counters().tcp_bytes;
    group.all_reduce(data.data(), data.size(), DType::kFloat32);
    said[machine] += group.backend().counters().tcp_bytes - sent_before;
    EXPECT_EQ(data[kCount - 1], static_cast<float>(ranks));
  });
  std::uint64_t all_said = 0;
  for (std::size_t machine = 0; machine < machines; ++machine) {
    all_said += said[machine];
    EXPECT_NEAR(static_cast<double>(said[machine]), static_cast<double>(said_to_be_sent), 1024)
        << "machine " << machine;  // chunks are full cache lines
    const std::uint64_t left = lab.traffic(static_cast<int>(machine)).sent - before[machine].sent;
    EXPECT_GE(left, leaving) << "machine " << machine;
    EXPECT_LE(left, leaving + leaving / 5 + (std::size_t{1} << 16))
        << "machine " << machine;  // with headers and acknowledgements
  }
  EXPECT_EQ(all_said, machines * said_to_be_sent);
}

class Meeting : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string obstacle = NetworkLab::obstacle(Link::kSwitch); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};

// Simulates the first seconds of a pod. `mend` is called `after` rank 1 has begun to connect to rank 0.
void meet_when_mended(const NetworkLab& lab, std::chrono::milliseconds after, const std::function<void()>& mend) {
  std::promise<void> begun;
  const auto mended = std::async(std::launch::async, [&] {
    begun.get_future().wait_for(20s);
    std::this_thread::sleep_for(after);
    mend();
  });
  LabJob job{.ranks_each = 1, .transport = "tcp"};
  job.store_of = [&](int rank, const std::shared_ptr<Store>& common, const std::string&) {
    if (rank == 1) begun.set_value();
    return common;
  };
  const auto start = std::chrono::steady_clock::now();
  run_in(lab, job, [](ProcessGroup& group) { check_calls(group, 1000); });
  EXPECT_GE(std::chrono::steady_clock::now() - start, after) << "they met over a link that was not there";
}

TEST_F(Meeting, WaitsForAMachineThatDoesNotAnswerYet) {
  NetworkLab lab(2, Link::kSwitch);
  lab.cut(1);
  meet_when_mended(lab, 4500ms, [&] { lab.mend(1); });  // a connection fails after three seconds
}

TEST_F(Meeting, WaitsForARoute) {
  const NetworkLab lab(2, Link::kSwitch);
  lab.take_route(1);
  meet_when_mended(lab, 1s, [&] { lab.give_route(1); });  // a connection fails at once
}

TEST_F(Meeting, NamesAMachineThatIsNotReachedInTime) {
  const NetworkLab lab(2, Link::kSwitch);
  lab.take_route(1);
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = outcomes_in(lab, {.ranks_each = 1, .store_timeout = 3s}, [](ProcessGroup&) {});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  EXPECT_EQ(outcomes[1].kind, "rendezvous");
  EXPECT_THAT(outcomes[1].text, HasSubstr("rank 1 cannot reach rank 0 at " + NetworkLab::address(0)));
  EXPECT_THAT(outcomes[1].text, HasSubstr("Network is unreachable"));
}

class Conditions : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string obstacle = NetworkLab::obstacle(Link::kRelay); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, Conditions, kTransports,
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(Conditions, DelayLossAndDisorderChangeNoBit) {
  NetworkLab lab(2, Link::kRelay);
  lab.relay().set({.delay = 300us, .loss = 0.005, .overtaken = 0.03, .overtaken_by = 1ms});
  run_in(lab, {.transport = GetParam()}, [](ProcessGroup& group) { check_calls(group, 100'001); });
  EXPECT_GT(lab.relay().lost(), 0u);
  EXPECT_GT(lab.relay().delayed_behind_others(), 0u);
}

TEST_P(Conditions, ASlowLinkChangesNoBit) {
  if (const std::string obstacle = NetworkLab::obstacle_to_limits(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  NetworkLab lab(3);
  for (int machine = 0; machine < 3; ++machine) lab.limit_rate(machine, "200mbit");
  run_in(lab, {.transport = GetParam()}, [](ProcessGroup& group) { check_calls(group, 100'001); });
}

// All connections of the highest rank go through a relay.
class RelayedJob {
 public:
  explicit RelayedJob(int ranks, std::size_t piece = std::size_t{1} << 16) : highest_(ranks - 1), piece_(piece) {}

  LabJob job(const std::string& transport, std::chrono::milliseconds timeout = 60s) {
    return {.transport = transport,
            .timeout = timeout,
            .store_of = [this](int rank, std::shared_ptr<Store> common, const std::string& host) {
              if (rank != highest_) return common;
              relay_ = std::make_unique<StreamRelay>();
              relay_->write_at_most(piece_);
              return std::shared_ptr<Store>(std::make_shared<RelayedStore>(std::move(common), *relay_, host));
            }};
  }
  int rank() const { return highest_; }
  StreamRelay& relay() { return *relay_; }  // of that rank, once it has joined

 private:
  int highest_;
  std::size_t piece_;
  std::unique_ptr<StreamRelay> relay_;
};

TEST_P(Conditions, OneByteAtATimeChangesNoBit) {
  const NetworkLab lab(2);
  RelayedJob relayed(4, 1);
  run_in(lab, relayed.job(GetParam()), [](ProcessGroup& group) { check_calls(group, 5'003); });
  EXPECT_GT(relayed.relay().passed(), 5'003u * 4);
}

// Reduces until the relay interferes, during an operation of 4 MB.
std::vector<Outcome> reduce_until(const NetworkLab& lab, RelayedJob& relayed, const LabJob& job,
                                  const std::function<void(StreamRelay&)>& interfere) {
  return outcomes_in(lab, job, [&](ProcessGroup& group) {
    std::vector<float> data(1'000'000, 1.0F);
    group.all_reduce(data.data(), data.size(), DType::kFloat32);
    if (group.rank() == relayed.rank()) interfere(relayed.relay());
    for (int call = 0; call < 1000; ++call) group.all_reduce(data.data(), data.size(), DType::kFloat32);
  });
}

// A cut link looks the same from both ends: the rank beyond it blames a peer, the others blame that rank. The first
// group error is kept.
TEST_P(Conditions, ACutAmidAnOperationEndsItAndNamesARankOfTheCut) {
  const NetworkLab lab(2);
  RelayedJob relayed(4);
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes =
      reduce_until(lab, relayed, relayed.job(GetParam()), [](StreamRelay& relay) { relay.cut_after(2'500'000); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].kind, "peer lost") << "rank " << rank << ": " << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].text, HasSubstr("all_reduce #")) << "rank " << rank;
    if (rank != 3) {
      EXPECT_THAT(outcomes[rank].text, ::testing::ContainsRegex("rank [0-3] \\(pid [0-9]+")) << "rank " << rank;
    }
  }
}

TEST_P(Conditions, AStallAmidAnOperationEndsItAtTheDeadline) {
  const NetworkLab lab(2);
  RelayedJob relayed(4);
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes =
      reduce_until(lab, relayed, relayed.job(GetParam(), 5s), [](StreamRelay& relay) { relay.stall_after(2'500'000); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_THAT(outcomes[rank].kind, ::testing::AnyOf("timeout", "peer lost"))
        << "rank " << rank << ": " << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].text, HasSubstr("all_reduce #")) << "rank " << rank;
    EXPECT_THAT(outcomes[rank].text, HasSubstr("rank 3")) << "rank " << rank;
  }
}

}  // namespace
}  // namespace lockstep::testing
