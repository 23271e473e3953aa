// Helpers for tests that write files, and gzip compression.
#pragma once

#include <stdlib.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "tests/support/temporary.h"

namespace lockstep::data {

// A file that is removed in the destructor.
class TestFile {
 public:
  explicit TestFile(std::string_view content, const std::string& name = "file") : path_(testing::temporary(name)) {
    write(content);
  }
  ~TestFile() { std::filesystem::remove(path_); }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  void write(std::string_view content) const {
    std::ofstream(path_, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string gzip(std::string_view content) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) != Z_OK)
    throw Error("deflateInit2");
  std::string packed(deflateBound(&stream, content.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) throw Error("deflate");
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// Calls `read` with the file cut at each byte and with single bits flipped. `read` must return, or throw a FileError
// that begins with the path. Returns how many damaged files were refused.
template <typename Read> int refused_when_damaged(const std::string& whole, Read&& read) {
  const TestFile file("");
  int refused = 0;
  const auto attempt = [&](const std::string& content) {
    file.write(content);
    try {
      read(file.path());
    } catch (const FileError& error) {
      EXPECT_EQ(std::string(error.what()).rfind(file.path(), 0), 0U) << error.what();
      ++refused;
    }
  };
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) attempt(whole.substr(0, bytes));
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const int bit : {0, 3, 7}) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      attempt(flipped);
    }
  return refused;
}

}  // namespace lockstep::data
