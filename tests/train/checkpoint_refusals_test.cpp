// Checkpoints that must not be loaded: damaged, too large, with special files, of another model, layout, format or
// optimizer. The error names the file and the reason, comes at once, and nothing is changed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>

#include "lockstep/core/error.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Folder;
using ::testing::HasSubstr;

using Trainee = CheckpointTrainee;
const std::string kNothing = "nothing was thrown";

class CheckpointRefusals : public ::testing::Test {
 protected:
  CheckpointRefusals() : written_(save_checkpoint(folder_.path(), Trainee(1).parts())) {}

  // The message of a load, which must change nothing.
  std::string refusal() {
    Trainee victim(2);
    const std::string before = victim.hash();
    const std::string message = message_of([&] { load_checkpoint(folder_.path(), victim.parts()); });
    if (message != kNothing) {
      EXPECT_EQ(victim.hash(), before);
    }
    return message;
  }

  const Folder folder_;
  const std::string written_;
};

TEST_F(CheckpointRefusals, AFileThatHasGrownIsRefusedBeforeItIsRead) {
  constexpr std::uintmax_t kTebibyte = std::uintmax_t{1} << 40;  // a hole: it takes no space on the disk
  for (const std::string& path :
       {written_ + "/model.safetensors", written_ + "/state.json", written_ + "/manifest.json"}) {
    const std::uintmax_t size = fs::file_size(path);
    std::error_code failure;
    fs::resize_file(path, kTebibyte, failure);
    if (failure) GTEST_SKIP() << "the file system has no files of 1 TiB: " << failure.message();
    EXPECT_THAT(refusal(),
                AllOf(HasSubstr(path + ": is damaged: it has 1099511627776 bytes, "), HasSubstr("expected ")))
        << path;
    fs::resize_file(path, size);
  }
  EXPECT_EQ(refusal(), kNothing);
}

// Opening a FIFO waits for the process at its other end. A load must not wait for it.
TEST_F(CheckpointRefusals, ASpecialFileIsRefusedAtOnce) {
  for (const std::string& path : {written_ + "/model.safetensors", written_ + "/manifest.json"}) {
    fs::rename(path, path + ".kept");
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    auto answer = std::async(std::launch::async, [&] { return refusal(); });
    if (answer.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      ADD_FAILURE() << path << ": waits for the FIFO's other end";
      ::close(::open(path.c_str(), O_RDWR | O_NONBLOCK));
    }
    EXPECT_THAT(answer.get(), HasSubstr(path + ": is a FIFO"));
    fs::remove(path);
    fs::create_symlink("/dev/zero", path);
    EXPECT_THAT(refusal(), HasSubstr(path + ": is a character device"));
    fs::remove(path);
    fs::create_directory(path);
    EXPECT_THAT(refusal(), HasSubstr(path + ": is a folder"));
    fs::remove(path);
    fs::rename(path + ".kept", path);
  }
}

TEST_F(CheckpointRefusals, WeightsInAnotherLayoutAreRefused) {
  const auto replace = [](const char* from, const char* to) {
    return [=](std::string& text) { text.replace(text.find(from), std::string(from).size(), to); };
  };
  testing::forge_model(folder_, written_, replace("OHWI", "OIHW"));
  EXPECT_THAT(refusal(), AllOf(HasSubstr(written_ + "/model.safetensors: "), HasSubstr("convolution_weights"),
                               HasSubstr("'OIHW'"), HasSubstr("'OHWI'"), HasSubstr("permute")));
  testing::forge_model(folder_, written_, replace("OIHW", "OHWI"));
  EXPECT_EQ(refusal(), kNothing);
  testing::forge_model(folder_, written_, replace("\"__metadata__\"", "\"__metadat_\""));
  EXPECT_THAT(refusal(), HasSubstr(written_ + "/model.safetensors: "));
}

TEST_F(CheckpointRefusals, AStateOfAnotherFormatIsRefused) {
  testing::forge(folder_, written_, [](nlohmann::json& state, nlohmann::json&) { state["format"] = 2; });
  EXPECT_THAT(refusal(), AllOf(HasSubstr(written_ + "/state.json: has format 2, "), HasSubstr("reads 1")));
}

TEST_F(CheckpointRefusals, AnInvalidLearningRateIsRefused) {
  testing::forge(folder_, written_, [](nlohmann::json& state, nlohmann::json&) { state["optimizer"]["lr"] = -1; });
  EXPECT_THAT(refusal(), AllOf(HasSubstr(written_ + "/state.json: "), HasSubstr("learning rate")));
}

TEST_F(CheckpointRefusals, OtherOptionsOfTheOptimizerAreNotReportedAsAnotherModel) {
  const auto refusal_by = [&](const std::string& folder, optim::SGDOptions options) {
    Trainee victim(2);
    optim::SGD other(victim.net.named_parameters(), options);
    CheckpointParts parts = victim.parts();
    parts.optimizer = other;
    return message_of([&] { load_checkpoint(folder, parts); });
  };
  const std::string plain = refusal_by(folder_.path(), {.lr = 0.1f});
  EXPECT_THAT(plain, AllOf(HasSubstr(written_ + "/optimizer.safetensors: "), HasSubstr(".momentum'"),
                           HasSubstr("options"), Not(HasSubstr("another model"))));
  const Folder without;
  Trainee run(1);
  optim::SGD sgd(run.net.named_parameters(), {.lr = 0.1f});
  CheckpointParts parts = run.parts();
  parts.optimizer = sgd;
  save_checkpoint(without.path(), parts);
  EXPECT_THAT(refusal_by(without.path(), {.lr = 0.1f, .momentum = 0.9f}),
              AllOf(HasSubstr(".momentum'"), HasSubstr("options"), Not(HasSubstr("another model"))));
}

}  // namespace
}  // namespace lockstep::train
