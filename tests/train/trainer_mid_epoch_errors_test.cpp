// A Trainer whose fit() ends with an exception in the middle of an epoch saves what is right, or says what is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/lockstep.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/mid_epoch_parts.h"

namespace lockstep::train::trainer_mid_epoch {
namespace {

using testing::Folder;
using ::testing::HasSubstr;

class ThrowsAt : public Callback {
 public:
  explicit ThrowsAt(std::int64_t step) : step_(step) {}
  void on_step_end(Trainer&, std::int64_t step, const Logs&) override {
    if (step == step_) throw Error("the light went out");
  }

 private:
  std::int64_t step_;
};

// In one process; the error of one of several ranks ends their group.
TEST(TrainerMidEpochErrors, ASaveAfterAnExceptionHasTheLastStepsPosition) {
  const auto straight = made(options_for("ddp", nullptr));
  straight->fit(points(), fitting());
  const Folder folder;
  const auto trainer = made(options_for("ddp", nullptr));
  EXPECT_THAT(message_of([&] { trainer->fit(points(), fitting({std::make_shared<ThrowsAt>(8)})); }),
              HasSubstr("the light went out"));
  trainer->save(folder.path());
  const auto resumed = made(options_for("ddp", nullptr));
  ASSERT_TRUE(resumed->load(folder.path()));
  EXPECT_EQ(resumed->step(), 8);
  resumed->fit(points(), fitting({}, resumed->epoch()));
  EXPECT_EQ(values_of(resumed->history()), values_of(straight->history()));
  EXPECT_EQ(train::values_of(resumed->model()), train::values_of(straight->model()));
}

// A step whose loss throws may have changed the weights, so its epoch begins again, with a warning.
TEST(TrainerMidEpochErrors, ASaveAfterAStepThatFailedRepeatsTheEpoch) {
  const Folder folder;
  CompileOptions options = options_for("ddp", nullptr);
  int losses = 0;
  options.loss = [&losses](const Tensor& outputs, const Tensor& targets) {
    if (++losses == 9) throw Error("the light went out");
    return nn::cross_entropy(outputs, targets);
  };
  const auto trainer = made(options);
  FitOptions fit = fitting();
  fit.validation.reset();
  EXPECT_THAT(message_of([&] { trainer->fit(points(), fit); }), HasSubstr("the light went out"));
  ::testing::internal::CaptureStderr();
  trainer->save(folder.path());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("Trainer::save: the last step has failed"));
  losses = 100;
  const auto resumed = made(options);
  ASSERT_TRUE(resumed->load(folder.path()));
  std::int64_t steps = 0;
  fit = fitting({std::make_shared<CountSteps>(steps)}, 1);
  resumed->fit(points(), fit);
  EXPECT_EQ(steps, 12);
}

// The exception comes between the last step of an epoch and its end.
TEST(TrainerMidEpochErrors, ASaveAfterAnExceptionInTheValidationHasTheEpochsEnd) {
  const auto straight = made(options_for("ddp", nullptr));
  straight->fit(points(), fitting());
  const Folder folder;
  CompileOptions options = options_for("ddp", nullptr);
  bool throws = true;
  options.loss = [&throws](const Tensor& outputs, const Tensor& targets) {
    if (throws && targets.shape()[0] == 10) throw Error("the light went out");  // a batch of the validation
    return nn::cross_entropy(outputs, targets);
  };
  const auto trainer = made(options);
  EXPECT_THAT(message_of([&] { trainer->fit(points(), fitting()); }), HasSubstr("the light went out"));
  trainer->save(folder.path());
  throws = false;
  const auto resumed = made(options);
  ASSERT_TRUE(resumed->load(folder.path()));
  std::int64_t steps = 0;
  resumed->fit(points(), fitting({std::make_shared<CountSteps>(steps)}, resumed->epoch()));
  EXPECT_EQ(steps, 2 * kSteps);
  EXPECT_EQ(values_of(resumed->history()), values_of(straight->history()));
  EXPECT_EQ(train::values_of(resumed->model()), train::values_of(straight->model()));
}

// The folder of a callback cannot be used: the program repairs it, and calls fit() again.
TEST(TrainerMidEpochErrors, AFitThatFailsBeforeItsFirstStepCanBeRepeated) {
  const Folder folder;
  made(options_for("ddp", nullptr))->fit(points(), fitting({every_step(folder.path())}));
  const auto trainer = made(options_for("ddp", nullptr));
  ASSERT_TRUE(trainer->load(folder.path() + "/step-00000008"));
  EXPECT_THROW(trainer->fit(points(), fitting({every_step("/dev/null/folder")}, 1)), FileError);
  std::int64_t steps = 0;
  trainer->fit(points(), fitting({std::make_shared<CountSteps>(steps)}, 1));
  EXPECT_EQ(steps, 10);
}

}  // namespace
}  // namespace lockstep::train::trainer_mid_epoch
