#include "examples/cifar10/train_dir.h"

#include <filesystem>
#include <regex>
#include <system_error>
#include <vector>

namespace ls = lockstep;
namespace fs = std::filesystem;

namespace {

// What save_checkpoint() and SummaryWriter make; the lock stays, for a job that may still run.
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

}  // namespace

void prepare_train_dir(const std::string& folder, const ls::ProcessGroup& group, TrainDir how) {
  if (group.rank() != 0 || how == TrainDir::kResume) return;  // what there is to resume, the load tells
  try {
    if (fs::is_directory(folder) && !fs::is_empty(folder)) {
      if (how == TrainDir::kNew)
        throw ls::InvalidArgument(
            "--train-dir {}: it is not empty: --resume goes on from its newest checkpoint, --overwrite begins anew and removes its "
            "checkpoints and event files; or name another folder",
            folder);
      remove_training(folder);
    }
  } catch (const fs::filesystem_error& error) {
    throw ls::FileError("--train-dir {}: {}", folder, error.code().message());
  }
  ls::prepare_checkpoint_folder(folder);
}
