// Parameters of several types in one model: each type has its own buckets, and all of them are averaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/optim/sgd.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::UnorderedElementsAre;

Tensor one_of(DType type) { return cast(Tensor::full({1, 1}, 1), type); }

// Weights of 1 in three types. The result is the sum of x times each, so that each gradient is x.
struct Mixed : nn::Module {
  Tensor wide = one_of(DType::kFloat32), brain = one_of(DType::kBFloat16), half = one_of(DType::kFloat16),
         last = one_of(DType::kBFloat16);
  bool uses_last = true;
  Mixed() {
    add_parameter("wide", wide);
    add_parameter("brain", brain);
    add_parameter("half", half);
    add_parameter("last", last);
  }
  Tensor forward(const Tensor& x) override {
    const auto times = [&](const Tensor& weight) { return cast(cast(x, weight.dtype()) * weight, DType::kFloat32); };
    const Tensor sum = x * wide + times(brain) + times(half);
    return uses_last ? sum + times(last) : sum;
  }
};

float float_of(const Tensor& tensor) { return cast(detach(tensor), DType::kFloat32).item(); }
float float_gradient_of(const Tensor& leaf) { return float_of(grad(leaf)); }

using Wire = std::tuple<int, const char*>;
class Dtypes : public ::testing::TestWithParam<Wire> {
 protected:
  void run(const std::function<void(std::shared_ptr<ProcessGroup>)>& body) const {
    expect_all_well(run_ranks(std::get<0>(GetParam()), std::get<1>(GetParam()), body));
  }
};
INSTANTIATE_TEST_SUITE_P(Wire, Dtypes,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Values("threads", "shm", "tcp")),
                         [](const auto& test) {
                           return std::get<1>(test.param) + std::to_string(std::get<0>(test.param));
                         });

void pass(DistributedDataParallel& ddp, float x) {
  for (const NamedTensor& parameter : ddp.parameters()) clear_grad(parameter.tensor);
  reshape(ddp(Tensor::full({1, 1}, x)), {}).backward();
}

TEST_P(Dtypes, EachHasItsOwnBucketsAndAverage) {
  run([](auto group) {
    Mixed model;
    model.brain.copy_from(cast(Tensor::full({1, 1}, static_cast<float>(1 + group->rank())), DType::kBFloat16));
    DistributedDataParallel ddp(model, group);
    EXPECT_EQ(float_of(model.brain), 1) << "rank 0's";
    std::vector<DType> types;
    for (const BucketLayout& bucket : ddp.reducer().buckets()) types.push_back(bucket.dtype);
    EXPECT_THAT(types, UnorderedElementsAre(DType::kFloat32, DType::kBFloat16, DType::kFloat16));
    const auto ranks = static_cast<float>(group->world_size());
    for (int step = 0; step < 3; ++step) {
      pass(ddp, static_cast<float>(2 * group->rank() + 1));  // 1, 3, 5, 7: the mean is the number of ranks
      for (const NamedTensor& parameter : ddp.parameters()) {
        EXPECT_EQ(float_gradient_of(parameter.tensor), ranks) << parameter.name;
        EXPECT_EQ(grad(parameter.tensor).dtype(), parameter.tensor.dtype());
      }
    }
  });
}

TEST_P(Dtypes, WeightsUnusedParametersAndNoSyncWorkForEach) {
  run([](auto group) {
    Mixed model;
    const bool is_first = group->rank() == 0;
    model.uses_last = is_first;
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = {in_mib(64)}, .find_unused_parameters = true});
    const int ranks = group->world_size();
    // Rank 0 has ranks + 1 of 2 * ranks samples.
    ddp.set_weight(is_first ? ranks + 1 : 1);
    pass(ddp, is_first ? 4.F : 12.F);
    const float first = 4.F * static_cast<float>(ranks + 1) / static_cast<float>(2 * ranks);
    const float mean = first + 12.F * static_cast<float>(ranks - 1) / static_cast<float>(2 * ranks);
    for (const Tensor& weight : {model.wide, model.brain, model.half}) EXPECT_EQ(float_gradient_of(weight), mean);
    EXPECT_EQ(float_gradient_of(model.last), first) << "only rank 0's";
    {
      const auto local = ddp.no_sync();
      pass(ddp, 2);
    }
    reshape(ddp(Tensor::full({1, 1}, 6)), {}).backward();
    for (const Tensor& weight : {model.wide, model.brain, model.half}) EXPECT_EQ(float_gradient_of(weight), 8);
  });
}

TEST(DtypesAlone, OptionsThatReadFloatsRefuseOtherTypes) {
  Mixed model;
  const auto group = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  EXPECT_THAT(
      message_of([&] { DistributedDataParallel(model, group, {.max_grad_norm = 1}); }),
      ::testing::HasSubstr("max_grad_norm and on_nonfinite_gradient read gradients of float32: 'brain' is bfloat16"));
  EXPECT_THAT(message_of([&] { optim::SGD(model.named_parameters(), {}); }),
              ::testing::HasSubstr("parameter 'brain' is bfloat16, expected float32: keep the weights in float32"));
  EXPECT_THAT(message_of([] { require_grad(Tensor::zeros({1}, DType::kInt64)); }),
              ::testing::HasSubstr("the tensor is int64"));
}

}  // namespace
}  // namespace lockstep::testing
