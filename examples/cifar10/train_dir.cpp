#include "examples/cifar10/train_dir.h"

#include <filesystem>
#include <functional>
#include <regex>
#include <system_error>
#include <vector>

namespace ls = lockstep;
namespace fs = std::filesystem;

namespace {

// Is it a file of save_checkpoint() or SummaryWriter? The lock belongs to neither: it stays, for a job that may still
// run.
bool is_of_a_training(const std::string& name) {
  static const std::regex kNames(R"(step-[0-9]+|latest|writing-.*|events\.out\.tfevents\..*)");
  return std::regex_match(name, kNames);
}

void remove_training(const std::string& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_of_a_training(entry.path().filename().string())) found.push_back(entry.path());
  for (const fs::path& path : found) fs::remove_all(path);
}

void check_is_new(const std::string& folder) {
  if (fs::is_directory(folder) && !fs::is_empty(folder))
    throw ls::InvalidArgument(
        "--train-dir {}: it is not empty: --resume continues from its newest checkpoint, --overwrite starts over and "
        "removes its checkpoints and event files; or choose another folder",
        folder);
}

// Rank 0 acts; if it throws, all ranks throw.
void on_rank_0(const std::string& folder, ls::ProcessGroup& group, const std::function<void()>& act) {
  ls::on_all_ranks(group, [&] {
    if (group.rank() != 0) return;
    try {
      act();
    } catch (const fs::filesystem_error& error) {
      throw ls::FileError("--train-dir {}: {}", folder, error.code().message());
    }
  });
}

}  // namespace

void prepare_train_dir(const std::string& folder, ls::ProcessGroup& group, TrainDir how) {
  if (how == TrainDir::kResume) return;  // the load checks whether there is a checkpoint
  if (how == TrainDir::kNew) on_rank_0(folder, group, [&] { check_is_new(folder); });
  ls::train::prepare_checkpoint_folder(folder);  // throws while another job trains there, before anything is removed
  if (how == TrainDir::kOverwrite) on_rank_0(folder, group, [&] { remove_training(folder); });
}
