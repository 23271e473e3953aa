// The sequence of a save. If each rank writes slices, all ranks run the same steps together; otherwise rank 0 runs them
// alone and the others wait for their end, so that a rank that is lost meanwhile does not cost the checkpoint. What a
// rank does in a step is in the step's function.
//
//   step             rank 0                                              the other ranks, if each writes slices
//   take_folder      locks the folder, chooses the checkpoint's name     -
//   write_files      writes and syncs its files                          write and sync their slices
//   write_manifest   writes the manifest, makes the temporary folder,    -
//                    names its files in it, syncs it
//   name_files       -                                                   name their files in the temporary folder
//   put_in_place     renames the folder, moves `latest`, removes old     -
//                    checkpoints
//
// The temporary folder is made when all files are on the disk, if the file system has files without a name; otherwise
// in take_folder.
#include <filesystem>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/core/error.h"
#include "src/core/base/error_of_peer.h"
#include "src/core/process/progress_page.h"
#include "src/train/checkpoint/checkpoint_format.h"
#include "src/train/checkpoint/checkpoint_plan.h"
#include "src/train/checkpoint/folder/checkpoint_folder.h"
#include "src/train/checkpoint/folder/folder_refusal.h"
#include "src/train/files/durable_file.h"

namespace lockstep::train::checkpoint {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr const char* kOperation = "save_checkpoint";
constexpr char kDone = '+', kRefused = '!';  // the first character of a rank's result

// The files that one rank writes for a checkpoint, in the folder that becomes it.
class Writer {
 public:
  // Files are made without a name in `born_in`; if it is empty, they have their names from the start.
  Writer(const fs::path& temporary, const std::string& born_in, std::atomic<std::uint64_t>* progress)
      : temporary_(temporary), born_in_(born_in), progress_(progress) {}

  void write(const PlannedFile& planned) {
    DurableFile& file = add(planned.name);
    planned.content().write(file);
    const WrittenFile written = file.finish();
    written_[planned.name] = {{"bytes", written.bytes}, {"sha256", written.sha256}};
  }

  // The files so far, as the manifest lists them; and the files of another rank.
  const ordered_json& written() const { return written_; }
  void add_written(const ordered_json& others) { written_.update(others); }

  // Returns the manifest's checksum.
  std::string write_manifest(const Origin& origin) {
    DurableFile& file = add(kManifest);
    file.write(ordered_json{{"format", kFormat},
                            {"step", origin.step},
                            {"sequence", origin.sequence},
                            {"lineage", origin.lineage},
                            {"job", nlohmann::json(origin.job)},
                            {"saved_at", origin.saved_at},
                            {"files", written_}}
                   .dump(1, ' ', /*ensure_ascii=*/true) +
               "\n");
    return file.finish().sha256;
  }

  void name_files() {
    if (born_in_.empty()) return;
    for (DurableFile& each : files_) each.give_name();
  }

 private:
  DurableFile& add(const std::string& name) {
    return files_.emplace_back((temporary_ / name).string(), born_in_, progress_);
  }

  fs::path temporary_;
  std::string born_in_;
  std::atomic<std::uint64_t>* progress_;
  std::list<DurableFile> files_;
  ordered_json written_;
};

// Rank 0's hold of the folder, from its lock until the new checkpoint is in place. If that does not happen, the
// destructor removes what is unfinished.
class NewCheckpoint {
 public:
  explicit NewCheckpoint(const SavePlan& plan) : plan_(plan), use_(plan.folder, plan.overwrite) {
    use_.check_newest(plan.overwrite);
    others_ = checkpoints_in(plan.folder);
    name_ = free_name(plan.folder, plan.step);
    temporary_ = plan.folder / temporary_name(name_);
    if (has_nameless_files((plan.folder / kNextLatest).string())) born_in_ = plan.folder.string();
  }
  ~NewCheckpoint() {
    if (is_in_place_) return;
    remove_quietly(temporary_);
    if (is_renamed_) remove_quietly(path());
    remove_quietly(plan_.folder / kNextLatest);
  }
  NewCheckpoint(const NewCheckpoint&) = delete;
  NewCheckpoint& operator=(const NewCheckpoint&) = delete;

  const fs::path& temporary() const { return temporary_; }
  const std::string& born_in() const { return born_in_; }
  std::string path() const { return (plan_.folder / name_).string(); }
  Origin origin() const { return {this_job(), use_.lineage(), next_sequence(others_), plan_.step, plan_.saved_at}; }
  void make_folder() const { fs::create_directory(temporary_); }
  void sync() const { sync_folder(temporary_.string()); }

  void put_in_place(const std::string& manifest_sha256) {
    rename_file(temporary_.string(), path());
    is_renamed_ = true;
    sync_folder(plan_.folder.string());
    move_latest(manifest_sha256);
    sync_folder(plan_.folder.string());
    use_.note_saved();
    remove_old(plan_.folder, names_to_remove(others_, plan_.saved_at, {plan_.keep, plan_.keep_for, use_.damaged()}));
  }

 private:
  void move_latest(const std::string& manifest_sha256) {
    const fs::path next = plan_.folder / kNextLatest;
    DurableFile file(next.string(), born_in_);
    file.write(name_ + " " + manifest_sha256 + "\n");
    file.finish();
    if (!born_in_.empty()) file.give_name();
    rename_file(next.string(), (plan_.folder / kLatest).string());
    is_in_place_ = true;
  }

  const SavePlan& plan_;
  FolderUse use_;
  std::vector<KeptCheckpoint> others_;  // in the folder before this save
  std::string name_;                    // of the new one
  fs::path temporary_;                  // the folder that becomes it
  std::string born_in_;                 // where files are made without a name, or ""
  bool is_renamed_ = false;             // it has its name
  bool is_in_place_ = false;            // `latest` names it
};

}  // namespace

// A save that runs: what its steps share on this rank.
class SaveRun {
 public:
  explicit SaveRun(const SavePlan& plan) : plan_(plan) {}

  // If it throws, the destructor removes what is unfinished.
  std::string run() {
    plan_.is_sliced ? run_together() : run_on_rank_zero();
    note_saved_step(plan_.step);  // for lockrun's report
    return path_;
  }

  std::string take_folder(const Results&) {
    if (!is_first()) return "";
    new_.emplace(plan_);
    if (new_->born_in().empty()) new_->make_folder();
    writer_.emplace(new_->temporary(), new_->born_in(), plan_.progress);
    if (!plan_.is_sliced) return "";
    return ordered_json{{"temporary", new_->temporary().string()}, {"born_in", new_->born_in()}}.dump();
  }

  std::string write_files(const Results& folders) {
    if (plan_.files.empty()) return "";
    if (!is_first()) {
      const ordered_json folder = ordered_json::parse(folders.front());
      writer_.emplace(folder.at("temporary").get<std::string>(), folder.at("born_in").get<std::string>(),
                      plan_.progress);
    }
    for (const PlannedFile& file : plan_.files) writer_->write(file);
    return is_first() ? "" : writer_->written().dump();
  }

  std::string write_manifest(const Results& written) {
    if (!is_first()) return "";
    for (const std::string& of_rank : written)
      if (!of_rank.empty()) writer_->add_written(ordered_json::parse(of_rank));
    manifest_sha256_ = writer_->write_manifest(new_->origin());
    if (!new_->born_in().empty()) new_->make_folder();
    writer_->name_files();
    new_->sync();
    return "";
  }

  std::string name_files(const Results&) {
    if (!is_first() && writer_) writer_->name_files();
    return "";
  }

  std::string put_in_place(const Results&) {
    if (!is_first()) return "";
    if (plan_.is_sliced) new_->sync();  // the other ranks have named files in it
    new_->put_in_place(manifest_sha256_);
    path_ = new_->path();
    end();
    return "";
  }

 private:
  // All ranks are in the same step. The destructor cleans up, because until the step ends other ranks may be writing in
  // the folder.
  void run_together() {
    Results results;
    for (const SaveStep& step : plan_.steps)
      results = act_on_all_ranks(plan_.group, kOperation, plan_.folder, [&] { return step.act(*this, results); });
  }

  void run_on_rank_zero() {
    act_on_all_ranks(plan_.group, kOperation, plan_.folder, [&] {
      try {
        for (const SaveStep& step : plan_.steps) step.act(*this, {});
      } catch (...) {
        end();  // before the other ranks receive the error, because their launcher may then end this process
        throw;
      }
      return std::string();
    });
  }

  bool is_first() const { return plan_.group.rank() == 0; }
  void end() {
    writer_.reset();
    new_.reset();
  }

  const SavePlan& plan_;
  std::optional<NewCheckpoint> new_;  // on rank 0
  std::optional<Writer> writer_;      // on a rank that writes files
  std::string manifest_sha256_;
  std::string path_;  // of the checkpoint, on rank 0 once it is in place
};

std::vector<SaveStep> save_steps() {
  return {{"take_folder", &SaveRun::take_folder},
          {"write_files", &SaveRun::write_files},
          {"write_manifest", &SaveRun::write_manifest},
          {"name_files", &SaveRun::name_files},
          {"put_in_place", &SaveRun::put_in_place}};
}

std::string run_save(const SavePlan& plan) { return SaveRun(plan).run(); }

Results act_on_all_ranks(GroupRef group, const char* operation, const fs::path& folder,
                         const std::function<std::string()>& act) {
  const auto act_here = [&] {
    try {
      return act();
    } catch (const fs::filesystem_error& error) {
      throw FileError("{}: the checkpoint cannot be written: {}", folder.string(), error.what());
    }
  };
  if (!group.has_several()) return {act_here()};
  // A refusal travels as a result, because the errors of the others have no kind of their own for it.
  std::exception_ptr refusal;
  const auto act_of_rank = [&] {
    try {
      return kDone + act_here();
    } catch (const FolderRefusal& error) {
      refusal = std::make_exception_ptr(FolderRefusal("{}: rank {}: {}", operation, group.rank(), error.what()));
      return kRefused + std::string(error.what());
    } catch (const FileError& error) {
      throw FileError("{}{}", error.what(),
                      group.rank() == 0 ? ""
                                        : ": each rank writes its slices of the optimizer's state: name a folder that "
                                          "all ranks see");
    }
  };
  Results results;
  try {
    results = gather_on_all_ranks(group, act_of_rank, {"checkpoint"});
  } catch (const FileErrorOfPeer& error) {
    throw FileErrorOfPeer("{}: {}", operation, error.what());
  } catch (const FileError& error) {
    throw FileError("{}: rank {}: {}", operation, group.rank(), error.what());
  }
  if (refusal) std::rethrow_exception(refusal);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank].front() == kRefused)
      throw FolderRefusalOfPeer("{}: rank {}: {}", operation, rank, results[rank].substr(1));
    results[rank].erase(0, 1);
  }
  return results;
}

}  // namespace lockstep::train::checkpoint
