// Many small tensors: the time of all look-ups by name grows with the number of tensors, not with its square. Otherwise
// this file would take a minute.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/nn/layers.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/safetensors.h"
#include "tests/ddp/ranks.h"
#include "tests/train/checkpoint_folder.h"

namespace lockstep::train {
namespace {

using testing::Folder;

// A module of side * side parameters with one element each, in rows: building a module searches its names.
struct Wide : nn::Module {
  struct Row : nn::Module {
    std::vector<Tensor> values;
    explicit Row(int side) : values(static_cast<std::size_t>(side)) {
      for (int i = 0; i < side; ++i)
        add_parameter("value" + std::to_string(i), values[static_cast<std::size_t>(i)] = Tensor::zeros({1}));
    }
  };
  std::vector<std::unique_ptr<Row>> rows;
  explicit Wide(int side) {
    for (int i = 0; i < side; ++i) add("row" + std::to_string(i), *rows.emplace_back(std::make_unique<Row>(side)));
  }
};

void number(const std::vector<NamedTensor>& tensors) {
  float next = 0;
  for (const NamedTensor& entry : tensors)
    if (entry.tensor.dtype() == DType::kFloat32) entry.tensor.fill(++next);
}

TEST(ManyTensors, AFileTakesTimeInProportionToTheirNumber) {
  const Folder folder;
  const std::string path = folder.path() + "/many.safetensors";
  std::vector<NamedTensor> saved;
  for (int i = 0; i < 100'000; ++i)
    saved.push_back({"layers." + std::to_string(i) + ".weight", Tensor::full({1}, static_cast<float>(i))});
  save_safetensors(path, saved);
  const std::vector<NamedTensor> loaded = load_safetensors(path).tensors;
  ASSERT_EQ(loaded.size(), saved.size());
  for (std::size_t i = 0; i < saved.size(); i += 997) {
    EXPECT_EQ(loaded[i].name, saved[i].name);
    EXPECT_EQ(loaded[i].tensor.item(), saved[i].tensor.item());
  }
}

TEST(ManyTensors, ACheckpointTakesTimeInProportionToTheirNumber) {
  const Folder folder;
  Wide net(200), other(200);  // 40,000 parameters
  optim::SGD sgd(net.named_parameters(), {.lr = 0.1f, .momentum = 0.9f}),
      others(other.named_parameters(), {.lr = 0.1f, .momentum = 0.9f});
  optim::ExponentialMovingAverage ema(net.named_parameters()), other_ema(other.named_parameters());
  number(net.named_parameters()), number(sgd.state());
  save_checkpoint(folder.path(), {.model = net, .optimizer = sgd, .ema = ema});
  load_checkpoint(folder.path(), {.model = other, .optimizer = others, .ema = other_ema});
  EXPECT_EQ(hash_of(other.state_dict()), hash_of(net.state_dict()));
  EXPECT_EQ(hash_of(others.state()), hash_of(sgd.state()));
}

}  // namespace
}  // namespace lockstep::train
