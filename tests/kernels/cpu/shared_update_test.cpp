// Updates among ranks that have mapped each other's memory: the mean of their gradients in rank order, the plain update
// with it, and the new weights on all ranks, compared bit for bit.
#include <fmt/format.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/kernels/cpu/exact.h"

namespace lockstep::testing {
namespace {

using Update = std::function<void(const KernelTable&, const UpdateTensor&, UpdateClock&)>;

const std::map<std::string, Update>& updates_by_name() {
  static const float lr = 0.1F;
  const auto group = [](UpdateClock& clock) { return GroupStep{&lr, 0.01F, nullptr, &clock}; };
  static const std::map<std::string, Update> all = {
      {"no state",
       [=](auto& k, auto& t, auto& c) {
         k.sgd_step({&t, 1}, {group(c), 0, false}, stream());
       }},
      {"one",
       [=](auto& k, auto& t, auto& c) {
         k.sgd_step({&t, 1}, {group(c), 0.9F, true}, stream());
       }},
      {"two",
       [=](auto& k, auto& t, auto& c) {
         k.adam_step({&t, 1}, {group(c), 0.9, 0.99, 1e-8F, true}, stream());
       }},
      {"three",
       [=](auto& k, auto& t, auto& c) {
         k.rmsprop_step({&t, 1}, {group(c), 0.9, 1e-8F, 0.9F, true}, stream());
       }},
  };
  return all;
}

// The arrays of rank 1 for a tensor of `count` elements among `ranks`; each array begins `skip` floats into its memory,
// and `skip` floats follow it.
struct Shared {
  std::vector<Floats> gradients, weights, states;
  Index count, skip;
  UpdateClock clock;

  Shared(Index elements, int ranks, Index skipped) : count(elements), skip(skipped) {
    const Index all = count + 2 * skip;
    for (int rank = 0; rank < ranks; ++rank) gradients.push_back(uniform(all, 10 + static_cast<unsigned>(rank)));
    weights.assign(static_cast<std::size_t>(ranks), uniform(all, 1));
    for (unsigned k = 0; k < 3; ++k) states.push_back(uniform(all, 20 + k));
    for (Floats& state : states)
      for (float& value : state)
        value = 1 + value / 2;  // averages of squares, which are larger than the squares of averages
  }

  void run(const KernelTable& kernels, const Update& update, const float* clip_factor = nullptr) {
    std::vector<const float*> grads;
    std::vector<float*> copies;
    for (Floats& gradient : gradients) grads.push_back(gradient.data() + skip);
    for (std::size_t rank = 0; rank < weights.size(); ++rank)
      if (rank != own()) copies.push_back(weights[rank].data() + skip);
    const SharedUpdate ranks{grads, copies, clip_factor};
    UpdateTensor tensor = whole();
    tensor.shared = &ranks;
    update(kernels, tensor, clock);
  }

  // The same step by step: first the mean, then the plain update, then the copies.
  void run_in_steps(const Update& update, float clip_factor = 1) {
    Floats clipped = mean();
    for (float& value : clipped) value *= clip_factor;
    UpdateTensor tensor = whole();
    tensor.grad = clipped.data() + skip;
    update(plain(), tensor, clock);
    for (Floats& weight : weights) weight = weights[own()];
  }

  Floats mean() const {
    Floats mean = gradients[0];
    for (std::size_t rank = 1; rank < gradients.size(); ++rank)
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += gradients[rank][i];
    for (float& value : mean) value *= 1 / static_cast<float>(gradients.size());
    return mean;
  }
  std::size_t own() const { return weights.size() == 1 ? 0 : 1; }

  UpdateTensor whole() {
    return {weights[own()].data() + skip,
            nullptr,
            {states[0].data() + skip, states[1].data() + skip, states[2].data() + skip},
            count};
  }
};

void expect_same(const Shared& actual, const Shared& expected, const std::string& what) {
  for (std::size_t rank = 0; rank < expected.weights.size(); ++rank)
    expect_same_bits(actual.weights[rank], expected.weights[rank], fmt::format("{}: weights of rank {}", what, rank));
  for (std::size_t k = 0; k < expected.states.size(); ++k)
    expect_same_bits(actual.states[k], expected.states[k], fmt::format("{}: state {}", what, k));
  for (std::size_t rank = 0; rank < expected.gradients.size(); ++rank)
    expect_same_bits(actual.gradients[rank], expected.gradients[rank],
                     fmt::format("{}: gradient of rank {}", what, rank));
}

TEST(SharedUpdate, IsThePlainUpdateOfTheMeanOnAllRanks) {
  for (const auto& [name, update] : updates_by_name())
    for (const int ranks : {2, 3, 5})
      for (const Index count : {0, 1, 15, 63, 64, 65, 1000})
        for (const Index skip : {16, 3}) {
          const std::string what = fmt::format("{}, {} ranks, {} elements, {} before them", name, ranks, count, skip);
          Shared expected(count, ranks, skip), slow = expected, fast = expected;
          for (int step = 0; step < 3; ++step) {
            expected.run_in_steps(update);
            slow.run(plain(), update);
            fast.run(tested(), update);
          }
          expect_same(slow, expected, "plain kernel, " + what);
          expect_same(fast, expected, what);
          if (::testing::Test::HasFailure()) return;
        }
}

// Large tensors are written past the caches.
TEST(SharedUpdate, OfLargeTensorsHasTheSameBits) {
  for (const Index skip : {16, 4, 3}) {
    const Update& update = updates_by_name().at("two");
    Shared expected((Index{1} << 18) + 77, 3, skip), fast = expected;
    expected.run_in_steps(update);
    fast.run(tested(), update);
    expect_same(fast, expected, fmt::format("{} before them", skip));
  }
}

TEST(SharedUpdate, ThatLossScalingSkipsChangesNothing) {
  LossScaleState scale{8, 1, 0, 0};
  const float lr = 0.1F;
  const Update update = [&](auto& k, auto& t, auto&) {
    k.sgd_step({&t, 1}, {{&lr, 0, &scale}, 0.9F, false}, stream());
  };
  for (const KernelTable* kernels : {&plain(), &tested()}) {
    const Shared before(100, 2, 16);
    Shared after = before;
    after.run(*kernels, update);
    expect_same(after, before, "skipped");
  }
}

TEST(SharedUpdate, OfClippedGradientsIsThatOfTheClippedMean) {
  const float factor = 0.3F;
  for (const auto& [name, update] : updates_by_name())
    for (const int ranks : {1, 2, 3})
      for (const Index count : {1, 64, 200}) {
        Shared expected(count, ranks, 3), slow = expected, fast = expected;
        expected.run_in_steps(update, factor);
        slow.run(plain(), update, &factor);
        fast.run(tested(), update, &factor);
        expect_same(slow, expected, "plain kernel, " + name);
        expect_same(fast, expected, name);
      }
}

TEST(SharedSums, OfSquaresHaveTheBitsOfASumOverTheMean) {
  for (const KernelTable* kernels : {&plain(), &tested()})
    for (const int ranks : {1, 2, 3, 5})
      for (const Index count : {0, 1, 15, 16, 63, 64, 65, 1000}) {
        const Shared shared(count, ranks, 3);
        const Floats mean = shared.mean();
        std::vector<const float*> grads;
        for (const Floats& gradient : shared.gradients) grads.push_back(gradient.data() + shared.skip);
        const SharedUpdate of_ranks{grads, {}};
        const UpdateTensor whole{nullptr, mean.data() + shared.skip, {}, count};
        UpdateTensor among_ranks{nullptr, nullptr, {}, count};
        among_ranks.shared = &of_ranks;
        double sums[2] = {-1, -2};
        kernels->square_sums({&whole, 1}, &sums[0], stream());
        kernels->square_sums({&among_ranks, 1}, &sums[1], stream());
        EXPECT_EQ(sums[0], sums[1]) << ranks << " ranks, " << count << " elements";
      }
}

}  // namespace
}  // namespace lockstep::testing
