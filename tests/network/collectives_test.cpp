// Collectives between machines: exact to the bit over good links and bad ones, and an error with the right name in time when a
// connection stalls or is cut amid an operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

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
void PrintTo(const Net& net, std::ostream* out) { *out << net.name; }

class BetweenMachines : public ::testing::TestWithParam<Net> {
 protected:
  void SetUp() override {
    if (const std::string obstacle = NetworkLab::obstacle(GetParam().link); !obstacle.empty()) GTEST_SKIP() << obstacle;
    if (GetParam().ipv6 && !NetworkLab::has_ipv6()) GTEST_SKIP() << "this kernel has no IPv6";
  }
};
INSTANTIATE_TEST_SUITE_P(Nets, BetweenMachines,
                         ::testing::Values(Net{"two_machines", Link::kSwitch, 2, false}, Net{"three_machines", Link::kSwitch, 3, false},
                                           Net{"two_machines_ipv6", Link::kSwitch, 2, true},
                                           Net{"three_machines_relayed", Link::kRelay, 3, false},
                                           Net{"two_machines_relayed_ipv6", Link::kRelay, 2, true}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(BetweenMachines, ResultsAreExact) {
  const NetworkLab lab(GetParam().machines, GetParam().link);
  run_in(lab, {.ipv6 = GetParam().ipv6}, [](ProcessGroup& group) {
    EXPECT_EQ(group.backend().transport(), "tcp");
    check_calls(group, 300'001);
  });
  for (int machine = 0; machine < lab.machines(); ++machine)
    EXPECT_GT(lab.traffic(machine).sent, 300'001u * 4) << "a wire of its own carried machine " << machine << "'s data";
}

class Conditions : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string obstacle = NetworkLab::obstacle(Link::kRelay); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};

TEST_F(Conditions, DelayLossAndDisorderChangeNoBit) {
  NetworkLab lab(2, Link::kRelay);
  lab.relay().set({.delay = 300us, .loss = 0.005, .overtaken = 0.03, .overtaken_by = 1ms});
  run_in(lab, {}, [](ProcessGroup& group) { check_calls(group, 100'001); });
  EXPECT_GT(lab.relay().lost(), 0u);
  EXPECT_GT(lab.relay().delayed_behind_others(), 0u);
}

TEST_F(Conditions, ASlowLinkChangesNoBit) {
  NetworkLab lab(3);
  for (int machine = 0; machine < 3; ++machine) lab.limit_rate(machine, "200mbit");
  run_in(lab, {}, [](ProcessGroup& group) { check_calls(group, 100'001); });
}

// All connections of the highest rank go through a relay.
class RelayedJob {
 public:
  explicit RelayedJob(int ranks, std::size_t piece = std::size_t{1} << 16) : highest_(ranks - 1), piece_(piece) {}

  LabJob job(std::chrono::milliseconds timeout = 60s) {
    return {.timeout = timeout, .store_of = [this](int rank, std::shared_ptr<Store> common, const std::string& host) {
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

TEST_F(Conditions, OneByteAtATimeChangesNoBit) {
  const NetworkLab lab(2);
  RelayedJob relayed(4, 1);
  run_in(lab, relayed.job(), [](ProcessGroup& group) { check_calls(group, 5'003); });
  EXPECT_GT(relayed.relay().passed(), 5'003u * 4);
}

// The reducing goes on until the relay interferes, amid an operation of 4 MB.
std::vector<Outcome> reduce_until(const NetworkLab& lab, RelayedJob& relayed, std::chrono::milliseconds timeout,
                                  const std::function<void(StreamRelay&)>& interfere) {
  return outcomes_in(lab, relayed.job(timeout), [&](ProcessGroup& group) {
    std::vector<float> data(1'000'000, 1.0F);
    group.all_reduce(data.data(), data.size(), DType::kFloat32);
    if (group.rank() == relayed.rank()) interfere(relayed.relay());
    for (int call = 0; call < 1000; ++call) group.all_reduce(data.data(), data.size(), DType::kFloat32);
  });
}

// A cut link looks the same from both ends: the rank behind it blames a peer, the others blame it. The first verdict stands.
TEST_F(Conditions, ACutAmidAnOperationEndsItAndNamesARankOfTheCut) {
  const NetworkLab lab(2);
  RelayedJob relayed(4);
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = reduce_until(lab, relayed, 60s, [](StreamRelay& relay) { relay.cut_after(2'500'000); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 12s);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].kind, "peer lost") << "rank " << rank << ": " << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].text, HasSubstr("all_reduce #")) << "rank " << rank;
    if (rank != 3) {
      EXPECT_THAT(outcomes[rank].text, ::testing::ContainsRegex("rank [0-3] \\(pid [0-9]+")) << "rank " << rank;
    }
  }
}

TEST_F(Conditions, AStallAmidAnOperationEndsItAtTheDeadline) {
  const NetworkLab lab(2);
  RelayedJob relayed(4);
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = reduce_until(lab, relayed, 2s, [](StreamRelay& relay) { relay.stall_after(2'500'000); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 12s);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_THAT(outcomes[rank].kind, ::testing::AnyOf("timeout", "peer lost")) << "rank " << rank << ": " << outcomes[rank].text;
    EXPECT_THAT(outcomes[rank].text, HasSubstr("all_reduce #")) << "rank " << rank;
    EXPECT_THAT(outcomes[rank].text, HasSubstr("rank 3")) << "rank " << rank;
  }
}

}  // namespace
}  // namespace lockstep::testing
