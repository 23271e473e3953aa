// Files that are on the disk when we say so, and the checksums of what they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/crypto.h"

namespace lockstep {

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::string sha256;  // hex
};

// Writes a new file piece by piece. Every failure throws FileError naming path and reason.
class DurableFile {
 public:
  explicit DurableFile(const std::string& path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> data);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  WrittenFile finish();  // synced and closed; once

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  int fd_;
  std::uint64_t bytes_ = 0;
  crypto::Sha256 hash_;
};

WrittenFile write_durably(const std::string& path, std::string_view text);
void sync_folder(const std::string& path);  // so that a rename within it lasts

// While it lives, no other process holds the lock of this folder. Throws FileError when one does. A file system that knows no
// locks gives none.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

void rename_file(const std::string& from, const std::string& to);
std::vector<std::byte> read_file(const std::string& path);

}  // namespace lockstep
