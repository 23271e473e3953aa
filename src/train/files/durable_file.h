// Files that are on the disk when we say so, and the checksums of what they hold.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/crypto.h"
#include "src/core/process/fd.h"

namespace lockstep {

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::string sha256;  // hex
};

// Writes a new file piece by piece. Every failure throws FileError naming path and reason.
class DurableFile {
 public:
  // In the folder `born_in` the file has no name until give_name(): of a process that is killed before, nothing is
  // left. Empty: it has its name from the start.
  explicit DurableFile(const std::string& path, const std::string& born_in = "");
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> data);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  WrittenFile finish();  // on the disk; once
  void give_name();  // after finish(), once: the folder of `path` must be there, and in the file system of `born_in`

 private:
  void close();
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  const bool has_name_;
  Fd fd_;
  std::uint64_t bytes_ = 0;
  crypto::Sha256 hash_;
};

// Are there files without a name in the folder of `free_path`, and can they get one? Tried out under that path, which
// is free afterwards.
bool has_nameless_files(const std::string& free_path);

WrittenFile write_durably(const std::string& path, std::string_view text);
void sync_folder(const std::string& path);  // so that a rename within it lasts

void rename_file(const std::string& from, const std::string& to);

// The size that a file may have, so that one that grew is not read first.
struct FileSize {
  std::uint64_t least = 0, most = UINT64_MAX;
  std::string text() const { return least == most ? fmt::format("{}", most) : fmt::format("at most {}", most); }
};

struct ReadFile {
  std::vector<std::byte> data;
  std::string sha256;  // hex
};

// Throws FileError naming path and reason: no regular file, another size, more than fits into memory.
ReadFile read_file(const std::string& path, const FileSize& expected = {});

}  // namespace lockstep
