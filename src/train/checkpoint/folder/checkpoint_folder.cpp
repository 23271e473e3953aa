#include "src/train/checkpoint/folder/checkpoint_folder.h"

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
#include "src/train/checkpoint/folder/folder_lock.h"
#include "src/train/checkpoint/folder/folder_refusal.h"
#include "src/train/files/durable_file.h"

namespace lockstep::train::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::chrono::seconds kPatienceWithThreads(3);

// Makes the folder and those above it that are missing, and syncs each, so that it outlives a loss of power.
void make_folder(const fs::path& folder) {
  if (folder.empty() || fs::is_directory(folder)) return;
  const fs::path above = folder.parent_path();
  make_folder(above);
  fs::create_directory(folder);
  sync_folder(above.empty() ? "." : above.string());
}

// Throws FolderRefusal if the folder cannot hold checkpoints.
const fs::path& made_folder(const fs::path& folder) {
  if (is_checkpoint(folder))
    throw FolderRefusal("{}: is itself a checkpoint: name the folder that holds it, or another one, to save in",
                        folder.string());
  make_folder(folder);
  return folder;
}

void remove_unfinished(const fs::path& folder) {
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(folder))
    if (is_temporary_name(entry.path().filename().string())) unfinished.push_back(entry.path());
  for (const fs::path& path : unfinished) remove_quietly(path);
}

// The text of a small file; "" if there is no such file.
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

bool is_of_this_job(const Origin& origin) { return origin.job.id == this_job().id; }

}  // namespace

// -- which job a folder belongs to

// This process's knowledge of a folder.
struct FolderUse::Record {
  std::mutex mutex;  // guards all members
  std::condition_variable released;
  bool is_busy = false;  // a thread is saving
  std::unique_ptr<FolderLock> lock;
  std::optional<std::string> seen;  // the text of `latest` at this job's last load or save; nullopt before the first
  std::string lineage;
  bool has_saved = false;
  std::set<std::string> damaged;

  bool is_held(const fs::path& folder) const { return lock != nullptr && lock->is_of(folder.string()); }
};

// The folders that this process has loaded from or saved in.
class FolderRecords {
 public:
  using Record = FolderUse::Record;
  static std::shared_ptr<Record> of(const fs::path& folder) {
    static auto* const kFolders = new FolderRecords;  // never destroyed: the locks last as long as the process
    const std::lock_guard lock(kFolders->mutex_);
    std::erase_if(kFolders->by_path_, [](const auto& entry) {
      Record& record = *entry.second;
      return entry.second.use_count() == 1 && record.lock != nullptr && record.lock->is_removed() &&
             !fs::exists(entry.first);
    });
    auto& record = kFolders->by_path_[fs::weakly_canonical(folder).string()];
    if (record == nullptr) record = std::make_shared<Record>();
    return record;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Record>> by_path_;
};

FolderUse::FolderUse(std::shared_ptr<Record> record, const fs::path& folder, bool overwrite)
    : record_(std::move(record)), folder_(folder) {
  std::unique_lock guard(record_->mutex);
  if (!record_->released.wait_for(guard, kPatienceWithThreads, [this] { return !record_->is_busy; }))
    throw FolderRefusal("{}: another thread of this process is saving a checkpoint there: save by one thread at a time",
                        folder.string());
  if (!record_->is_held(folder)) {
    record_->lock.reset();
    record_->lock = std::make_unique<FolderLock>(folder.string(), overwrite);
    if (latest_in(folder).empty()) {  // another folder of that name, or an empty one
      record_->seen.reset();
      record_->has_saved = false;
    }
  }
  record_->is_busy = true;
}

FolderUse::FolderUse(const fs::path& folder, bool overwrite)
    : FolderUse(FolderRecords::of(made_folder(folder)), folder, overwrite) {
  remove_unfinished(folder);
}

FolderUse::~FolderUse() {
  const std::lock_guard guard(record_->mutex);
  record_->is_busy = false;
  record_->released.notify_one();
}

void FolderUse::check_newest(bool overwrite) const {
  const std::string latest = latest_in(folder_);
  const std::lock_guard lock(record_->mutex);
  if (latest.empty() || latest == record_->seen) return;
  const Origin newest = named_by(folder_, latest);
  if (is_of_this_job(newest)) return;
  if (overwrite || !record_->seen) {
    log::warn("checkpoint: {} holds {}{}: this job's checkpoints replace it", folder_.string(), text_of(newest),
              overwrite ? "" : ", which has ended, and from which this job has not resumed");
    return;
  }
  throw FolderRefusal(
      "{}: another job has saved {} there since this one {}: this job's checkpoints do not continue it. Save in a "
      "folder of your own, resume from that checkpoint, or go on here with .overwrite = true",
      folder_.string(), text_of(newest), record_->has_saved ? "saved last" : "looked there");
}

std::string FolderUse::lineage() const {
  const std::lock_guard lock(record_->mutex);
  return record_->lineage.empty() ? this_job().id : record_->lineage;
}

void FolderUse::note_saved() const {
  const std::lock_guard lock(record_->mutex);
  record_->seen = latest_in(folder_);
  record_->has_saved = true;
}

std::set<std::string> FolderUse::damaged() const {
  const std::lock_guard lock(record_->mutex);
  return record_->damaged;
}

void check_and_note_load(const fs::path& folder, const LoadedCheckpoint* found, bool overwrite) {
  const bool is_by_own_folder = found != nullptr && found->is_by_own_folder;
  // If the checkpoint's own folder was given: the folder that holds it, if that is one of checkpoints.
  const fs::path holder =
      is_by_own_folder ? fs::weakly_canonical(folder / kManifest).parent_path().parent_path() : folder;
  if (is_by_own_folder && !fs::exists(holder / kLatest)) return;
  const auto record = FolderRecords::of(holder);
  const std::lock_guard lock(record->mutex);
  const Origin origin = found != nullptr ? found->origin : Origin{};
  if (found != nullptr && !is_by_own_folder && !overwrite && record->has_saved && record->is_held(holder) &&
      !is_of_this_job(origin) && record->seen != latest_in(holder))
    throw FileError(
        "{}: its newest checkpoint, {}, was saved while this job trains and saves there: it is no state of this "
        "training. Load one of this job's by its own folder, or take it all the same with .overwrite = true",
        folder.string(), text_of(origin));
  if (found != nullptr && !record->lineage.empty() && !origin.lineage.empty() && origin.lineage != record->lineage)
    log::warn("checkpoint: {} has {}, which does not continue the training that this job has loaded from there before",
              folder.string(), text_of(origin));
  record->seen = latest_in(holder);
  if (found != nullptr) record->damaged.insert(found->damaged.begin(), found->damaged.end());
  if (found != nullptr) record->lineage = origin.lineage.empty() ? origin.job.id : origin.lineage;
}

// -- what is in the folder

void try_folder(const fs::path& folder, bool overwrite) {
  const FolderUse use(folder, overwrite);
  try {
    write_durably((folder / kNextLatest).string(), "\n");
  } catch (...) {
    remove_quietly(folder / kNextLatest);
    throw;
  }
  remove_quietly(folder / kNextLatest);
}

std::string free_name(const fs::path& folder, std::int64_t step) {
  int again = 0;
  while (fs::exists(folder / folder_name(step, again))) ++again;
  return folder_name(step, again);
}

Origin origin_in(const fs::path& checkpoint) {
  return origin_of(json::parse(small_text(checkpoint / kManifest), nullptr, /*allow_exceptions=*/false));
}

std::vector<KeptCheckpoint> checkpoints_in(const fs::path& folder) {
  std::vector<KeptCheckpoint> checkpoints;
  for (const auto& entry : fs::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); is_folder_name(name)) {
      const Origin origin = origin_in(entry.path());
      checkpoints.push_back({name, origin.sequence, step_of_folder(name), origin.saved_at});
    }
  return checkpoints;
}

void remove_old(const fs::path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) remove_quietly(folder / name);
}

void remove_quietly(const fs::path& path) {
  std::error_code failure;
  fs::remove_all(path, failure);
  if (failure) log::warn("checkpoint: {} cannot be removed: {}", path.string(), failure.message());
}

}  // namespace lockstep::train::checkpoint
