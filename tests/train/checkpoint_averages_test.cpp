// Checkpoints that are saved while the parameters hold averages have both: the weights of the model, and the averages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/optim/ema.h"
#include "lockstep/train/safetensors.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

using testing::Folder;
using ::testing::HasSubstr;

struct Averaged {
  Averaged() {
    for (int step = 1; step <= 3; ++step) {
      for (const NamedTensor& parameter : net.named_parameters()) parameter.tensor.fill(static_cast<float>(step));
      ema.update();
    }
  }
  CheckpointParts parts() { return {.model = net, .ema = ema}; }

  nn::Linear net{2, 2};
  optim::ExponentialMovingAverage ema{net.named_parameters(), {.decay = 0.5, .ramp = false}};
};

TEST(CheckpointAverages, AreNotSavedAsTheWeights) {
  const Folder folder;
  Averaged saved;
  const std::string weights = hash_of(saved.net.state_dict()), averages = hash_of(saved.ema.state());
  {
    const auto swapped = saved.ema.swapped();
    EXPECT_NE(hash_of(saved.net.state_dict()), weights);
    save_checkpoint(folder.path(), saved.parts());
    EXPECT_NE(hash_of(saved.net.state_dict()), weights) << "the scope has not ended";
  }
  EXPECT_EQ(hash_of(saved.net.state_dict()), weights);
  Averaged loaded;
  for (const NamedTensor& entry : loaded.ema.state())
    entry.tensor.copy_from(Tensor::zeros(entry.tensor.shape(), entry.tensor.dtype()));
  for (const NamedTensor& entry : loaded.net.state_dict()) entry.tensor.fill(0);
  load_checkpoint(folder.path(), loaded.parts());
  EXPECT_EQ(hash_of(loaded.net.state_dict()), weights);
  EXPECT_EQ(hash_of(loaded.ema.state()), averages);
}

// The parts need not name the averages. If two averages are swapped, the first one has the weights.
TEST(CheckpointAverages, AreFoundWithoutBeingGiven) {
  const Folder folder;
  Averaged saved;
  const std::string weights = hash_of(saved.net.state_dict());
  optim::ExponentialMovingAverage second(saved.net.named_parameters(), {.decay = 0.9});
  {
    const auto one = saved.ema.swapped();
    const auto two = second.swapped();
    save_checkpoint(folder.path(), {.model = saved.net});
  }
  Averaged loaded;
  for (const NamedTensor& entry : loaded.net.state_dict()) entry.tensor.fill(0);
  load_checkpoint(folder.path(), {.model = loaded.net});
  EXPECT_EQ(hash_of(loaded.net.state_dict()), weights);
}

TEST(CheckpointAverages, ALoadWhileTheyAreSwappedIsRefused) {
  const Folder folder;
  Averaged run;
  save_checkpoint(folder.path(), run.parts());
  const std::string weights = hash_of(run.net.state_dict());
  {
    const auto swapped = run.ema.swapped();
    EXPECT_THAT(message_of([&] { load_checkpoint(folder.path(), run.parts()); }),
                HasSubstr("load_checkpoint: parameter 'weight' holds its average at the moment, by ema.swapped(): "));
  }
  EXPECT_EQ(hash_of(run.net.state_dict()), weights);
  EXPECT_TRUE(load_checkpoint(folder.path(), run.parts()).has_value());
}

TEST(CheckpointAverages, TheMetadataOfASafetensorsFileTellsThatItHasThem) {
  const Folder folder;
  Averaged run;
  const std::string path = folder.path() + "/net.safetensors";
  std::string averages;
  {
    const auto swapped = run.ema.swapped();
    averages = hash_of(run.net.state_dict());
    save_safetensors(path, run.net.state_dict());
  }
  const Safetensors exported = load_safetensors(path);
  EXPECT_EQ(hash_of(exported.tensors), averages) << "as the module has them";
  EXPECT_EQ(exported.metadata.at("weights"), "averages");
  save_safetensors(path, run.net.state_dict());
  EXPECT_EQ(load_safetensors(path).metadata.count("weights"), 0u);
}

}  // namespace
}  // namespace lockstep::train
