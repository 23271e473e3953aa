// Files that are on the disk when a call returns, and their checksums.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/crypto.h"
#include "lockstep/core/error.h"
#include "src/core/process/fd.h"

namespace lockstep::train {

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::string sha256;  // hex
};

// Writes a new file piece by piece. Every failure throws FileError with path and reason.
class DurableFile {
 public:
  // The file is made in the folder `born_in` and has no name until give_name(), so that nothing is left if the process
  // is killed before. If `born_in` is empty, the file has its name from the start. `progress`, unless null, outlives
  // the file and grows by the bytes that the system has taken.
  explicit DurableFile(const std::string& path, const std::string& born_in = "",
                       std::atomic<std::uint64_t>* progress = nullptr);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> data);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  WrittenFile finish();  // syncs it to the disk; call it once
  // Call it once, after finish(). The folder of `path` must exist, in the file system of `born_in`.
  void give_name();

 private:
  void close();
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  const bool has_name_;
  Fd fd_;
  std::uint64_t bytes_ = 0;
  std::atomic<std::uint64_t>* progress_;
  crypto::Sha256 hash_;
};

// Can the folder of `free_path` have files without a name, and can they get one later? Tries it with that path, which
// is free again afterwards.
bool has_nameless_files(const std::string& free_path);

WrittenFile write_durably(const std::string& path, std::string_view text);
// So that a rename within the folder lasts. A file system that cannot sync a folder is reported once, by a warning:
// after a loss of power, the newest files there may be missing.
void sync_folder(const std::string& path);

// Replaces `to`.
void rename_file(const std::string& from, const std::string& to);

// Calls `write` with a file that becomes `path` when all is on the disk: `path` is replaced as a whole, or not at all.
// Throws FileError that begins with `caller` if there is no such folder, or if `path` is a folder.
void replace_durably(const char* caller, const std::string& path, const std::function<void(DurableFile&)>& write);

// The size that a file may have. It is checked before the file is read.
struct FileSize {
  std::uint64_t least = 0, most = UINT64_MAX;
  std::string text() const { return least == most ? fmt::format("{}", most) : fmt::format("at most {}", most); }
};

struct ReadFile {
  std::vector<std::byte> data;
  std::string sha256;  // hex
};

// The file may be intact.
class NoMemoryForFile : public FileError {
 public:
  using FileError::FileError;
};

// Throws FileError with path and reason: it is not a regular file, or has another size; or NoMemoryForFile.
ReadFile read_file(const std::string& path, const FileSize& expected = {});

}  // namespace lockstep::train
