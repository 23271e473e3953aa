#include "src/train/checkpoint/folder.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/train/checkpoint/files.h"
#include "src/train/files/durable_file.h"

namespace lockstep::checkpoint {

namespace fs = std::filesystem;

namespace {

// Makes the folder and those above it that are missing, so that they last.
void make_folder(const fs::path& folder) {
  if (folder.empty() || fs::is_directory(folder)) return;
  const fs::path above = folder.parent_path();
  make_folder(above);
  fs::create_directory(folder);
  sync_folder(above.empty() ? "." : above.string());
}

// The files that a crash left behind, once the folder is ours: none of them counts.
std::vector<fs::path> unfinished_in(const fs::path& folder) {
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(folder))
    if (is_temporary_name(entry.path().filename().string())) unfinished.push_back(entry.path());
  return unfinished;
}

}  // namespace

void remove_quietly(const fs::path& path) {
  std::error_code failure;
  fs::remove_all(path, failure);
  if (failure) log::warn("checkpoint: {} cannot be removed: {}", path.string(), failure.message());
}

bool is_checkpoint(const fs::path& folder) { return fs::exists(folder / kManifest) && fs::exists(folder / kModel); }

void in_own_folder(const fs::path& folder, bool overwrite, const std::function<void(const FolderUse& use)>& write) {
  try {
    if (is_checkpoint(folder))
      throw FileError("{}: is itself a checkpoint: name the folder that holds it, or another one, to save in",
                      folder.string());
    make_folder(folder);
    const FolderUse use(folder, overwrite);  // else one job would remove what another one is writing
    for (const fs::path& path : unfinished_in(folder)) remove_quietly(path);
    write(use);
  } catch (const fs::filesystem_error& error) {
    throw FileError("{}: the checkpoint cannot be written: {}", folder.string(), error.what());
  }
}

std::string free_name(const fs::path& folder, std::int64_t step) {
  int again = 0;
  while (fs::exists(folder / folder_name(step, again))) ++again;
  return folder_name(step, again);
}

void remove_old(const fs::path& folder, const std::string& newest, int keep) {
  struct Other {
    std::int64_t sequence, step;
    std::string name;
    auto rank() const {
      return std::tuple(sequence, step, name.size(), name);
    }  // "step-00000003.10" comes after "step-00000003.9"
  };
  std::vector<Other> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_folder_name(name) && name != newest)
      others.push_back({origin_in(entry.path()).sequence, step_of_folder(name), name});
  }
  std::sort(others.begin(), others.end(), [](const Other& a, const Other& b) { return a.rank() > b.rank(); });
  for (std::size_t i = static_cast<std::size_t>(std::max(keep, 1) - 1); i < others.size(); ++i)
    remove_quietly(folder / others[i].name);
}

}  // namespace lockstep::checkpoint
