// DataParallel, the module: the user's loop, loss and optimizer, with PyTorch's results.
#include "lockstep/train/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/message_of.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

Device& cpu(std::size_t number) { return *logical_devices(DeviceKind::kCpu)[number]; }
std::vector<Device*> first_cpus(int count) { return on_cpus(0, count).devices; }

// No statistics of a batch: the parts together compute what one device computes.
struct Dense : nn::Module {
  nn::Linear hidden{72, 8}, out{8, 3};
  Dense() { add("hidden", hidden), add("out", out); }
  Tensor forward(const Tensor& x) override { return out(dropout(tanh(hidden(flatten(x))), 0.25F, is_training())); }
};

std::vector<float> train_dense(nn::Module& model, nn::Module& net, int steps, std::int64_t rows) {
  optim::SGD sgd(net.named_parameters(), {.lr = 0.1F, .momentum = 0.9F});
  manual_seed(11);
  for (int step = 0; step < steps; ++step) {
    const auto batch = batch_of(step);
    const Tensor x = slice(batch.first, 0, {.stop = rows}), labels = slice(batch.second, 0, {.stop = rows});
    sgd.zero_grad();
    nn::cross_entropy(model(x), labels).backward();
    sgd.step();
  }
  return weights_of(net);
}

TEST(ModuleDataParallel, TrainsAsOneDeviceDoesAlsoWithUnevenParts) {
  for (const std::int64_t rows : {std::int64_t{12}, std::int64_t{7}, std::int64_t{2}}) {
    manual_seed(7);
    Dense alone;
    const std::vector<float> expected = train_dense(alone, alone, kSteps, rows);
    for (const int devices : {1, 2, 3, 4}) {
      manual_seed(7);
      Dense net;
      DataParallel model(net, first_cpus(devices));
      EXPECT_LT(largest_difference(expected, train_dense(model, net, kSteps, rows)), 1e-5F)
          << rows << " rows on " << devices << " devices";
    }
  }
}

// x on 3 devices: the parts, the order of the rows, and the gradient of x, which flows back to where it was.
TEST(ModuleDataParallel, ScattersAndGathersInOrder) {
  struct Twice : nn::Module {
    std::vector<std::int64_t> rows;
    Tensors forward_all(const Tensors& inputs) override {
      check_inputs(inputs, 2);
      return {inputs[0] + inputs[0], inputs[1] * inputs[0], mean(inputs[0])};
    }
  };
  Twice net;
  DataParallel model(net, first_cpus(3));
  std::vector<float> values(14), others(14);
  for (std::size_t i = 0; i < 14; ++i) values[i] = static_cast<float>(i), others[i] = static_cast<float>(i % 3);
  const Tensor x = Tensor::from<float>(values, {7, 2}), other = Tensor::from<float>(others, {7, 2});
  require_grad(x);
  const Tensors y = model(Tensors{x, other});
  ASSERT_EQ(y.size(), 3u);
  EXPECT_EQ(y[0].shape(), Shape({7, 2}));
  EXPECT_EQ(y[2].shape(), Shape({3})) << "a scalar of each device, as PyTorch gathers them";
  EXPECT_EQ(&y[0].device(), &cpu(0));
  for (std::size_t i = 0; i < 14; ++i) EXPECT_EQ(y[0].span<float>()[i], 2 * values[i]);
  EXPECT_EQ(y[2].span<float>()[2], 12.5F) << "torch.chunk cuts 7 rows into 3, 3 and 1";
  (sum(y[0]) + sum(y[1]) + sum(y[2])).backward();
  for (std::size_t i = 0; i < 14; ++i)
    EXPECT_FLOAT_EQ(grad(x).span<float>()[i], 2 + others[i] + 1 / (i < 12 ? 6.0F : 2.0F)) << i;
}

TEST(ModuleDataParallel, AddsGradientsUntilTheyAreClearedAndRunsBackwardTwiceWithRetainGraph) {
  manual_seed(7);
  Dense net;
  net.eval();
  DataParallel model(net, first_cpus(2));
  const auto batch = batch_of(0);
  const Tensor loss = nn::cross_entropy(model(batch.first), batch.second);
  loss.backward({.retain_graph = true});
  const Tensor once = grad(net.out.weight).clone();
  loss.backward();
  for (std::size_t i = 0; i < 24; ++i)
    EXPECT_FLOAT_EQ(grad(net.out.weight).span<float>()[i], 2 * once.span<float>()[i]);
  EXPECT_THROW(loss.backward(), InvalidArgument) << "the tape is freed";
}

// A discriminator sees real and generated images before one backward; an evaluation may come between forward and
// backward.
TEST(ModuleDataParallel, SeveralForwardsBeforeABackwardShareTheWeights) {
  manual_seed(7);
  Dense net;
  net.eval();
  const auto real = batch_of(0), generated = batch_of(1);
  const auto gradient_with = [&](nn::Module& model) {
    for (const Tensor& parameter : net.parameters()) clear_grad(parameter);
    const Tensor first = nn::cross_entropy(model(real.first), real.second);
    {
      const NoGrad no_grad;
      model(generated.first);
    }
    const Tensor second = nn::cross_entropy(model(generated.first), generated.second);
    add(first, second).backward();
    const auto values = grad(net.hidden.weight).span<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> expected = gradient_with(net);
  DataParallel model(net, first_cpus(3));
  EXPECT_THAT(gradient_with(model), ::testing::Pointwise(::testing::FloatNear(1e-6F), expected));
  net.out.weight.fill(0);
  EXPECT_THAT(gradient_with(model), Each(0.0F)) << "a change of the module reaches the copies";
}

TEST(ModuleDataParallel, ComputesOnAllDevicesAtTheSameTime) {
  struct Meeting : nn::Module {
    static std::atomic<int>& arrived() {
      static std::atomic<int> count{0};
      return count;
    }
    nn::Linear linear{2, 1};
    Meeting() { add("linear", linear); }
    static void meet() {  // returns when another thread is here as well
      const int target = arrived().fetch_add(1) / 2 * 2 + 2;
      while (arrived() < target) std::this_thread::yield();
    }
    Tensor forward(const Tensor& x) override {
      meet();
      const Tensor y = linear(x);
      register_result_grad_hook(y, [](const Tensor&) { meet(); }).detach();
      return y;
    }
  };
  Meeting net;
  DataParallel model(net, first_cpus(2));
  sum(model(Tensor::full({4, 2}, 1))).backward();  // neither forward nor backward would end if one waited for the other
  EXPECT_EQ(Meeting::arrived(), 4);
}

TEST(ModuleDataParallel, KeepsTheFirstDevicesBuffersAndFollowsModesAndFrozenParameters) {
  manual_seed(7);
  Net net;
  const auto model = std::make_unique<DataParallel>(net, first_cpus(2));
  const auto batch = batch_of(0);
  const float before = net.named_buffers()[0].tensor.span<float>()[0];
  (*model)(batch.first);
  EXPECT_NE(net.named_buffers()[0].tensor.span<float>()[0], before);
  net.eval();
  const float after = net.named_buffers()[0].tensor.span<float>()[0];
  const NoGrad no_grad;
  const Tensor y = (*model)(batch.first), alone = net(batch.first);
  EXPECT_EQ(net.named_buffers()[0].tensor.span<float>()[0], after) << "evaluation changes no statistics";
  for (std::int64_t i = 0; i < y.count(); ++i)
    EXPECT_NEAR(y.span<float>()[static_cast<std::size_t>(i)], alone.span<float>()[static_cast<std::size_t>(i)], 1e-6F);
  {
    const EnableGrad recording;
    net.conv.freeze();
    sum((*model)(batch.first)).backward();
  }
  EXPECT_FALSE(requires_grad(net.conv.weight));
  EXPECT_TRUE(has_grad(net.out.weight));
  EXPECT_EQ(model->named_parameters()[0].name, "module.conv.weight");
}

// Only some modules train, and the last device has no rows in these steps.
TEST(ModuleDataParallel, StatisticsOfAModuleThatTrainsInsideOfAModelInEvalModeReachAllCopies) {
  manual_seed(7);
  Net net;
  DataParallel model(net, first_cpus(4));
  model.eval();
  net.norm.train();
  const Tensor images = batch_of(0).first;
  const NoGrad no_grad;
  for (int step = 0; step < 20; ++step) model(slice(images, 0, {.stop = 6}));
  net.norm.eval();
  const Tensor expected = net(images), computed = model(images);
  ASSERT_EQ(computed.shape(), expected.shape());
  for (std::size_t i = 0; i < computed.span<float>().size(); ++i)
    EXPECT_NEAR(computed.span<float>()[i], expected.span<float>()[i], 1e-5F) << i;
}

TEST(ModuleDataParallel, AveragesAddedLosses) {
  struct Penalized : nn::Module {
    nn::Linear linear{2, 1};
    Penalized() { add("linear", linear); }
    Tensor forward(const Tensor& x) override {
      nn::add_loss(mean(x), "mean");
      return linear(x);
    }
  };
  Penalized net;
  DataParallel model(net, first_cpus(2));
  const nn::AddedLosses added;
  model(Tensor::from<float>(std::vector<float>{1, 1, 2, 2, 6, 6}, {3, 2}));  // 2 rows and 1
  ASSERT_EQ(added.all().size(), 1u);
  EXPECT_EQ(added.all()[0].name, "mean");
  EXPECT_FLOAT_EQ(added.sum().item(), 3);
}

TEST(ModuleDataParallel, RefusesMisuse) {
  manual_seed(7);
  Dense net;
  const RandomState random = random_state();
  DataParallel model(net, first_cpus(2));
  EXPECT_EQ(random_state(), random) << "copies draw nothing";
  EXPECT_THAT(message_of([&] {
                DataParallel(net, {&cpu(1), &cpu(0)});
              }),
              AllOf(HasSubstr("'hidden.weight' is on"), HasSubstr("move the module there with .to(device)")));
  EXPECT_THAT(message_of([&] { DataParallel(net, {&cpu(0), &cpu(0)}); }), HasSubstr("comes twice"));
  EXPECT_THAT(message_of([&] { DataParallel(net, {&cpu(0), nullptr}); }), HasSubstr("device 1 of the list is null"));
  nn::Sequential sequential;
  sequential.append<nn::Linear>(2, 2);
  EXPECT_THAT(message_of([&] { DataParallel(sequential, first_cpus(2)); }),
              HasSubstr("PyTorch copies the object; here the function has to build the same layers"));
  EXPECT_THAT(message_of([&] { DataParallel(net, first_cpus(2), DataParallel::MakeModule()); }), HasSubstr("is empty"));
  EXPECT_THAT(message_of([&] { model(Tensors{}); }), HasSubstr("without inputs"));
  EXPECT_THAT(message_of([&] {
                model(Tensors{Tensor::zeros({2, 72}), Tensor::zeros({3, 72})});
              }),
              HasSubstr("the inputs have 2 and 3 rows"));
  EXPECT_THAT(message_of([&] { model(Tensor::full({}, 1)); }), HasSubstr("has no rows"));
  EXPECT_THAT(message_of([&] { model(Tensor::zeros({4, 5})); }), HasSubstr("linear"));
  nn::Sequential grown;
  grown.append<nn::Linear>(72, 3);
  DataParallel of_grown(grown, first_cpus(2), [] {
    auto copy = std::make_unique<nn::Sequential>();
    copy->append<nn::Linear>(72, 3);
    return copy;
  });
  grown.append<nn::Linear>(3, 3);
  EXPECT_THAT(message_of([&] { of_grown(batch_of(0).first); }),
              HasSubstr("the module had 2 parameters or buffers when it was wrapped and has 4 now"));
  const Tensor loss = sum(model(batch_of(0).first));
  net.out.weight.fill(0);
  EXPECT_THROW(loss.backward(), InvalidArgument) << "weights changed between forward and backward";
}

}  // namespace
}  // namespace lockstep::train
