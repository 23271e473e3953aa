#include "examples/cifar10/train_dir.h"

#include <filesystem>
#include <functional>
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

void check_is_new(const std::string& folder) {
  if (fs::is_directory(folder) && !fs::is_empty(folder))
    throw ls::InvalidArgument(
        "--train-dir {}: it is not empty: --resume goes on from its newest checkpoint, --overwrite begins anew and removes its "
        "checkpoints and event files; or name another folder",
        folder);
}

// On rank 0: what it throws, all ranks throw.
void together(const std::string& folder, ls::ProcessGroup& group, const std::function<void()>& act) {
  std::string problem;  // A: a wrong argument follows, F: an error of the file system
  try {
    if (group.rank() == 0) act();
  } catch (const fs::filesystem_error& error) {
    problem = fmt::format("F--train-dir {}: {}", folder, error.code().message());
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

}  // namespace

void prepare_train_dir(const std::string& folder, ls::ProcessGroup& group, TrainDir how) {
  if (how == TrainDir::kResume) return;  // what there is to resume, the load tells
  if (how == TrainDir::kNew) together(folder, group, [&] { check_is_new(folder); });
  ls::prepare_checkpoint_folder(folder);  // refused while another job trains there, before anything of it is removed
  if (how == TrainDir::kOverwrite) together(folder, group, [&] { remove_training(folder); });
}
