#include "src/train/checkpoint/owner.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/train/checkpoint/files.h"
#include "src/train/checkpoint/folder.h"
#include "src/train/checkpoint/folder_lock.h"

namespace lockstep::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::chrono::seconds kPatienceWithThreads(3);

// The text of a small file; "" where there is none.
std::string small_text(const fs::path& path) {
  constexpr std::uintmax_t kMost = std::uintmax_t{1} << 20;
  std::error_code failure;
  if (!fs::is_regular_file(path, failure) || fs::file_size(path, failure) > kMost || failure) return "";
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string latest_in(const fs::path& folder) { return small_text(folder / kLatest); }

// The checkpoint that this text of `latest` names.
Origin named_by(const fs::path& folder, const std::string& latest) {
  const std::string name = latest.substr(0, latest.find(' '));
  return is_folder_name(name) ? origin_in(folder / name) : Origin{};
}

std::string text_of(const Origin& origin) { return fmt::format("step {} of {}", origin.step, origin.job.text()); }

bool is_this_jobs(const Origin& origin) { return origin.job.id == this_job().id; }

}  // namespace

Origin origin_in(const fs::path& checkpoint) {
  return origin_of(json::parse(small_text(checkpoint / kManifest), nullptr, /*allow_exceptions=*/false));
}

std::int64_t next_sequence(const fs::path& folder) {
  std::int64_t last = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    if (is_folder_name(entry.path().filename().string())) last = std::max(last, origin_in(entry.path()).sequence);
  return last + 1;
}

struct FolderUse::Known {
  std::mutex mutex;  // of all below
  std::condition_variable released;
  bool is_busy = false;  // during a call
  std::unique_ptr<FolderLock> lock;
  std::optional<std::string> seen;  // the text of `latest` as this job loaded or saved last; none: it did neither
  std::string lineage;
  bool has_saved = false;

  bool is_held(const fs::path& folder) const { return lock != nullptr && lock->is_of(folder.string()); }

  void release() {
    const std::lock_guard guard(mutex);
    is_busy = false;
    released.notify_one();
  }
};

// The folders that this process has loaded from or saved in.
class FoldersKnown {
 public:
  using Known = FolderUse::Known;
  static std::shared_ptr<Known> of(const fs::path& folder) {
    static auto* const kFolders = new FoldersKnown;  // never destroyed: the locks go with the process
    const std::lock_guard lock(kFolders->mutex_);
    std::erase_if(kFolders->by_path_, [](const auto& entry) {
      Known& known = *entry.second;
      return entry.second.use_count() == 1 && known.lock != nullptr && known.lock->is_removed() &&
             !fs::exists(entry.first);
    });
    auto& known = kFolders->by_path_[fs::weakly_canonical(folder).string()];
    if (known == nullptr) known = std::make_shared<Known>();
    return known;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Known>> by_path_;
};

FolderUse::FolderUse(const fs::path& folder, bool overwrite) : folder_(folder), known_(FoldersKnown::of(folder)) {
  std::unique_lock guard(known_->mutex);
  if (!known_->released.wait_for(guard, kPatienceWithThreads, [this] { return !known_->is_busy; }))
    throw FileError("{}: another thread of this process is saving a checkpoint there: save by one thread at a time",
                    folder.string());
  if (!known_->is_held(folder)) {
    known_->lock.reset();
    known_->lock = std::make_unique<FolderLock>(folder.string(), overwrite);
    if (latest_in(folder).empty())
      known_->seen.reset(), known_->has_saved = false;  // another folder by that name, or an empty one
  }
  known_->is_busy = true;
}

FolderUse::~FolderUse() { known_->release(); }

void FolderUse::check_newest(bool overwrite) const {
  const std::string latest = latest_in(folder_);
  const std::lock_guard lock(known_->mutex);
  if (latest.empty() || latest == known_->seen) return;
  const Origin newest = named_by(folder_, latest);
  if (is_this_jobs(newest)) return;
  if (overwrite || !known_->seen) {
    log::warn("checkpoint: {} holds {}{}: this job's checkpoints replace it", folder_.string(), text_of(newest),
              overwrite ? "" : ", which has ended, and from which this job has not resumed");
    return;
  }
  throw FileError(
      "{}: another job has saved {} there since this one {}: this job's checkpoints do not continue it. Save in a "
      "folder of your own, "
      "resume from that checkpoint, or go on here with .overwrite = true",
      folder_.string(), text_of(newest), known_->has_saved ? "saved last" : "looked there");
}

std::string FolderUse::lineage() const {
  const std::lock_guard lock(known_->mutex);
  return known_->lineage.empty() ? this_job().id : known_->lineage;
}

void FolderUse::saved() const {
  const std::lock_guard lock(known_->mutex);
  known_->seen = latest_in(folder_);
  known_->has_saved = true;
}

void check_and_note_load(const fs::path& folder, const LoadedCheckpoint* found, bool overwrite) {
  const bool is_by_own_folder = found != nullptr && !found->is_latest;
  // A checkpoint that was named itself: the folder that holds it, as far as it is one of checkpoints.
  const fs::path holder =
      is_by_own_folder ? fs::weakly_canonical(folder / kManifest).parent_path().parent_path() : folder;
  if (is_by_own_folder && !fs::exists(holder / kLatest)) return;
  const auto known = FoldersKnown::of(holder);
  const std::lock_guard lock(known->mutex);
  const Origin origin = found != nullptr ? found->origin : Origin{};
  if (found != nullptr && found->is_latest && !overwrite && known->has_saved && known->is_held(holder) &&
      !is_this_jobs(origin) && known->seen != latest_in(holder))
    throw FileError(
        "{}: its newest checkpoint, {}, was saved while this job trains and saves there: it is no state of this "
        "training. Load one of this "
        "job's by its own folder, or take it all the same with .overwrite = true",
        folder.string(), text_of(origin));
  if (found != nullptr && !known->lineage.empty() && !origin.lineage.empty() && origin.lineage != known->lineage)
    log::warn("checkpoint: {} has {}, which does not continue the training that this job has loaded from there before",
              folder.string(), text_of(origin));
  known->seen = latest_in(holder);
  if (found != nullptr) known->lineage = origin.lineage.empty() ? origin.job.id : origin.lineage;
}

}  // namespace lockstep::checkpoint
