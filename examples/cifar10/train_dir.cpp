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

void prepare_on_rank_zero(const std::string& folder, TrainDir how) {
  if (how == TrainDir::kResume) return;  // what there is to resume, the load tells
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

}  // namespace

void prepare_train_dir(const std::string& folder, ls::ProcessGroup& group, TrainDir how) {
  std::string problem;  // A: a wrong argument follows, F: an error of the file system
  try {
    if (group.rank() == 0) prepare_on_rank_zero(folder, how);
  } catch (const ls::InvalidArgument& error) {
    problem = fmt::format("A{}", error.what());
  } catch (const ls::Error& error) {
    problem = fmt::format("F{}", error.what());
  }
  problem = group.broadcast_text(problem, 0);
  if (problem.empty()) return;
  if (problem[0] == 'A') throw ls::InvalidArgument("{}", problem.substr(1));
  throw ls::FileError("{}", problem.substr(1));
}
