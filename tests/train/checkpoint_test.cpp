// Checkpoints: what a load restores, what is refused, and that a refused load changes nothing.
#include "lockstep/train/checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/nn/batch_norm.h"
#include "src/core/process/fd.h"
#include "src/train/checkpoint/folder/folder_lock.h"
#include "src/train/files/durable_file.h"
#include "tests/ddp/ranks.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

using Trainee = CheckpointTrainee;
using testing::file_error_of;
using testing::Folder;
using testing::forge;

TEST(Checkpoint, EverythingComesBack) {
  const Folder folder;
  Trainee saved(1);
  manual_seed(42);
  const Tensor draw = Tensor::empty({3});
  fill_uniform(draw, 0, 1);
  const std::string written = save_checkpoint(folder.path(), saved.parts());
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000007"}));
  const std::string before = saved.hash();
  Trainee other(2);
  EXPECT_NE(other.hash(), before);
  const auto state = load_checkpoint(folder.path(), other.parts(0));
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->step, 7);
  EXPECT_EQ(state->epoch, 2);
  EXPECT_EQ(state->world_size, 1);
  EXPECT_EQ(state->folder, written);
  EXPECT_EQ(other.hash(), before);
  EXPECT_EQ(other.sampler.state().consumed, 4);
  EXPECT_EQ(random_state(), (RandomState{42, 1}));
}

TEST(Checkpoint, ALoadWithoutACheckpointIsNoError) {
  const Folder folder;
  Trainee run(1);
  EXPECT_FALSE(load_checkpoint(folder.path(), run.parts()).has_value());
  EXPECT_FALSE(load_checkpoint(folder.path() + "/not/there", run.parts()).has_value());
  EXPECT_THROW(load_checkpoint("", run.parts()), InvalidArgument);
  EXPECT_THROW(resume_checkpoint("", run.parts()), InvalidArgument);
}

TEST(Checkpoint, AResumeWithoutACheckpointTellsWhatTheFolderHolds) {
  const Folder folder;
  Trainee run(1);
  const auto refusal = [&](const std::string& path) {
    return file_error_of([&] { resume_checkpoint(path, run.parts()); });
  };
  EXPECT_EQ(refusal(folder.path() + "/mistyped"), "resume_checkpoint: there is no checkpoint to go on from. " +
                                                      folder.path() + "/mistyped: there is no such folder");
  prepare_checkpoint_folder(folder.path());
  EXPECT_NE(refusal(folder.path()).find(folder.path() + ": it is empty"), std::string::npos) << refusal(folder.path());
  save_checkpoint(folder.path(), run.parts(3));
  EXPECT_EQ(resume_checkpoint(folder.path(), run.parts()).step, 3);
  fs::create_directory(folder.path() + "/other");
  fs::create_directory(folder.path() + "/other/step-00000003");
  EXPECT_NE(refusal(folder.path() + "/other").find(": it holds neither 'latest' nor a checkpoint's 'manifest.json'"),
            std::string::npos);
}

TEST(Checkpoint, EachLoadsByItsOwnFolderAndNothingIsSavedInIt) {
  const Folder folder;
  std::vector<std::string> written, hashes;
  for (const int step : {1, 2}) {
    Trainee run(static_cast<std::uint64_t>(step));
    written.push_back(save_checkpoint(folder.path(), run.parts(step)));
    hashes.push_back(run.hash());
  }
  std::ofstream(folder.path() + "/latest") << "damaged";
  for (const std::string end : {"", "/"}) {
    Trainee other(9);
    const auto older = load_checkpoint(written[0] + end, other.parts());
    ASSERT_TRUE(older.has_value());
    EXPECT_EQ(older->step, 1);
    EXPECT_EQ(other.hash(), hashes[0]);
  }
  Trainee run(1);
  EXPECT_NE(file_error_of([&] { save_checkpoint(written[0], run.parts(3)); }).find("is itself a checkpoint"),
            std::string::npos);
  EXPECT_NE(file_error_of([&] { prepare_checkpoint_folder(written[0] + "/"); }).find("is itself a checkpoint"),
            std::string::npos);
}

// The writer may be on another machine, whose locks this machine may not see.
TEST(Checkpoint, ALoadRemovesNothing) {
  const Folder folder;
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts(1));
  fs::create_directory(folder.path() + "/writing-step-00000002-1");
  std::ofstream(folder.path() + "/writing-latest") << "being written";
  EXPECT_EQ(load_checkpoint(folder.path(), run.parts())->step, 1);
  EXPECT_EQ(folder.names(),
            (std::vector<std::string>{"latest", "step-00000001", "writing-latest", "writing-step-00000002-1"}));
}

TEST(Checkpoint, AnIncompleteStateChangesNothing) {
  Trainee run(1), victim(2);
  const std::string before = victim.hash();
  for (const char* key : {"step", "epoch", "world_size", "random", "sampler", "optimizer", "format"}) {
    const Folder folder;
    forge(folder, save_checkpoint(folder.path(), run.parts()),
          [&](nlohmann::json& state, nlohmann::json&) { state.erase(key); });
    EXPECT_NE(file_error_of([&] { load_checkpoint(folder.path(), victim.parts()); }).find(folder.path()),
              std::string::npos)
        << key;
    EXPECT_EQ(victim.hash(), before) << key;
  }
}

TEST(Checkpoint, AManifestCannotNameOtherFiles) {
  const Folder folder;
  Trainee run(1);
  std::ofstream(folder.path() + "/elsewhere") << "text";
  forge(folder, save_checkpoint(folder.path(), run.parts()),
        [&](nlohmann::json&, nlohmann::json& files) { files["../elsewhere"] = files["state.json"]; });
  EXPECT_NE(file_error_of([&] { load_checkpoint(folder.path(), run.parts()); }).find("lists '../elsewhere'"),
            std::string::npos);
}

TEST(Checkpoint, AFlipInAnyByteIsFoundAndChangesNothing) {
  const Folder folder;
  Trainee run(1);
  const std::string written = save_checkpoint(folder.path(), run.parts());
  Trainee victim(2);
  const std::string before = victim.hash();
  int flips = 0;
  for (const std::string& path : {written + "/manifest.json", written + "/state.json", written + "/model.safetensors",
                                  written + "/optimizer.safetensors"}) {
    const auto size = static_cast<std::streamoff>(fs::file_size(path));
    for (std::streamoff at = 0; at < size; ++at) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      const auto flip = [&] {
        file.seekg(at);
        const char value = static_cast<char>(file.get() ^ 0x10);
        file.seekp(at);
        file.put(value).flush();
      };
      flip();
      const std::string message = file_error_of([&] { load_checkpoint(folder.path(), victim.parts()); });
      ASSERT_NE(message.find(folder.path()), std::string::npos) << path << " byte " << at << ": " << message;
      ASSERT_EQ(victim.hash(), before) << path << " byte " << at;
      flip();
      ++flips;
    }
  }
  EXPECT_GT(flips, 1500);
  EXPECT_EQ(load_checkpoint(folder.path(), victim.parts())->step, 7) << "every flip was undone";
}

TEST(Checkpoint, TruncatedAndMissingFilesAreNamed) {
  const Folder folder;
  Trainee run(1);
  const std::string written = save_checkpoint(folder.path(), run.parts());
  fs::resize_file(written + "/model.safetensors", 100);
  EXPECT_NE(file_error_of([&] { load_checkpoint(folder.path(), run.parts()); }).find("model.safetensors: is damaged"),
            std::string::npos);
  fs::remove(written + "/model.safetensors");
  EXPECT_NE(
      file_error_of([&] { load_checkpoint(folder.path(), run.parts()); }).find("model.safetensors: cannot be opened"),
      std::string::npos);
}

TEST(Checkpoint, TheFirstDifferenceFromAnotherModelIsNamed) {
  const Folder folder;
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts());
  Trainee wider(2, 4);
  const std::string before = wider.hash();
  EXPECT_NE(file_error_of([&] {
              load_checkpoint(folder.path(), wider.parts());
            }).find("'a.weight' is float32 (3, 2) there, float32 (4, 2) here"),
            std::string::npos);
  EXPECT_EQ(wider.hash(), before);
  nn::Sequential fewer;
  fewer.append_named<nn::Linear>("a", 2, 3);
  EXPECT_NE(
      file_error_of([&] { load_checkpoint(folder.path(), {.model = fewer}); }).find("'b.bias' (1) does not exist here"),
      std::string::npos);
  optim::SGD plain(run.net.named_parameters(), {.lr = 1});
  EXPECT_NE(
      file_error_of([&] { load_checkpoint(folder.path(), {.model = run.net, .optimizer = plain}); }).find("momentum"),
      std::string::npos);
}

// A layer that saves as nn::BatchNorm did when its buffer was called running_variance.
struct EarlierNorm : nn::Module {
  Tensor weight = Tensor::full({2}, 5), bias = Tensor::full({2}, 6), mean = Tensor::full({2}, 7),
         variance = Tensor::full({2}, 8);
  EarlierNorm() {
    add_parameter("weight", weight), add_parameter("bias", bias);
    add_buffer("running_mean", mean), add_buffer("running_variance", variance);
  }
};
template <typename Norm> struct NormNet : nn::Module {
  Norm norm;
  template <typename... Args> explicit NormNet(Args... args) : norm(args...) { add("norm", norm); }
};

TEST(Checkpoint, OfEarlierVersionsStillLoadWithBatchNorm) {
  const Folder folder;
  NormNet<EarlierNorm> earlier;
  save_checkpoint(folder.path(), {.model = earlier, .step = 3});
  NormNet<nn::BatchNorm> today(2);
  ASSERT_TRUE(load_checkpoint(folder.path(), {.model = today}).has_value());
  EXPECT_EQ(today.norm.running_mean.data<float>()[0], 7);
  EXPECT_EQ(today.norm.running_var.data<float>()[1], 8);
}

TEST(Checkpoint, AFullDiskLeavesThePreviousCheckpointAndNothingUnfinished) {
  const Folder folder;
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts(1));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{200, 200};  // bytes a file
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message =
        file_error_of([&] { save_checkpoint(folder.path(), run.parts(2), {.on_error = OnSaveError::kStop}); });
    _exit(message.find("model.safetensors: cannot be written: File too large") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000001"}));
  EXPECT_EQ(load_checkpoint(folder.path(), run.parts())->step, 1);
}

TEST(Checkpoint, OnlyRankZeroReadsAndAllRanksGetTheState) {
  const Folder folder, empty;
  Trainee saved(1);
  save_checkpoint(folder.path(), saved.parts());
  const std::string wanted = hash_of(saved.net.named_parameters());
  testing::expect_all_well(testing::run_ranks(3, "shm", [&](auto group) {
    Trainee run(static_cast<std::uint64_t>(group->rank()) + 10);
    CheckpointParts parts = run.parts(0);
    parts.group = group;
    // Rank 0 alone has the folder.
    const auto state = load_checkpoint(group->rank() == 0 ? folder.path() : empty.path() + "/absent", parts);
    ASSERT_TRUE(state.has_value());
    EXPECT_EQ(state->step, 7);
    EXPECT_EQ(hash_of(run.net.named_parameters()), wanted);
    EXPECT_EQ(run.sampler.epoch(), 1);
  }));
}

TEST(Checkpoint, ADataParallelRunLoadsOnOneProcessWithoutTheWrapper) {
  const Folder folder;
  std::string wanted;
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](auto group) {
    Trainee run(1);
    DistributedDataParallel ddp(run.net, group);
    CheckpointParts parts = run.parts(3);
    parts.group = group;
    parts.ddp = ddp;
    const std::string written = save_checkpoint(folder.path(), parts);
    ASSERT_EQ(written.empty(), group->rank() != 0);
    if (group->rank() != 0) return;
    wanted = hash_of(run.net.named_parameters());
    const auto state = nlohmann::json::parse(std::ifstream(written + "/state.json"));
    EXPECT_EQ(state["buckets"].dump(), R"([["b.bias","b.weight","a.bias","a.weight"]])");
  }));
  Trainee alone(2);
  EXPECT_EQ(load_checkpoint(folder.path(), alone.parts())->world_size, 2);
  EXPECT_EQ(hash_of(alone.net.named_parameters()), wanted);
}

TEST(Checkpoint, AnErrorOfRankZeroReachesEveryRankAndOnlyRankZeroWrites) {
  const Folder folder;
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](auto group) {
    Trainee run(1);
    CheckpointParts parts = run.parts(3);
    parts.group = group;
    save_checkpoint(folder.path(), parts);
    group->barrier();
    if (group->rank() == 0) fs::resize_file(folder.path() + "/step-00000003/state.json", 10);
    group->barrier();
    EXPECT_NE(file_error_of([&] { load_checkpoint(folder.path(), parts); }).find("state.json: is damaged"),
              std::string::npos);
  }));
  EXPECT_EQ(folder.names().size(), 2u);
}

TEST(Checkpoint, RanksWithDifferentModelsAreNamedBeforeAnythingIsRead) {
  const Folder folder;
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](auto group) {
    Trainee run(1, group->rank() == 0 ? 3 : 4);
    CheckpointParts parts = run.parts();
    parts.group = group;
    try {
      load_checkpoint(folder.path(), parts);
      FAIL() << "accepted";
    } catch (const MismatchError& error) {
      EXPECT_EQ(std::string(error.what())
                    .find("load_checkpoint: the ranks built different models: rank 1 has parameter 'a.weight'"),
                0u)
          << error.what();
    }
  }));
}

TEST(Checkpoint, PythonsSafetensorsReadsTheWeights) {
  const char* python = std::getenv("LOCKSTEP_TEST_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "LOCKSTEP_TEST_PYTHON names no python with safetensors and numpy";
  const Folder folder;
  Trainee run(1);
  const std::string written = save_checkpoint(folder.path(), run.parts());
  const float first = run.net.named_parameters()[0].tensor.span<float>()[0];
  const std::string script = fmt::format(
      "from safetensors.numpy import load_file; t = load_file('{}/model.safetensors'); assert sorted(t) == ['a.bias', "
      "'a.weight', "
      "'b.bias', 'b.weight'], t; "
      "assert t['a.weight'].shape == (3, 2); assert abs(float(t['a.weight'][0, 0]) - ({:.9g})) < 1e-7",
      written, first);
  EXPECT_EQ(std::system(fmt::format("{} -c \"{}\"", python, script).c_str()), 0);
}

}  // namespace
}  // namespace lockstep::train
