#include "src/train/checkpoint/failed_save.h"

#include "lockstep/core/log.h"
#include "src/train/checkpoint/checkpoint_reader.h"
#include "src/train/checkpoint/folder/folder_refusal.h"

namespace lockstep::train::checkpoint {

bool is_refusal(const FileError& error) {
  return dynamic_cast<const FolderRefusal*>(&error) != nullptr ||
         dynamic_cast<const FolderRefusalOfPeer*>(&error) != nullptr;
}

void warn_not_saved(const std::filesystem::path& folder, std::int64_t step, const std::string& reason) noexcept {
  try {
    const std::string newest = newest_with_all_files(folder);
    log::warn("step {} is not saved, and the training goes on: {}; {}; the next save tries again", step, reason,
              newest.empty() ? "there is no checkpoint yet" : "the newest checkpoint is " + newest);
  } catch (const std::exception&) {
    // No memory is left for the message.
  }
}

}  // namespace lockstep::train::checkpoint
