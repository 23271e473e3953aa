#include "lockstep/data/files.h"

#include <span>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"
#include "src/core/process/file_kind.h"
#include "src/core/process/regular_file.h"
#include "src/data/formats/gzip.h"
#include "src/data/formats/utf8.h"

namespace lockstep::data {

std::vector<std::uint8_t> read_file(const std::string& path, std::uint64_t max_bytes) {
  const RegularFile file = open_regular_file(path);
  if (file.bytes > max_bytes)
    throw FileError("{}: has {} bytes, more than {}: give the reader a larger max_bytes if it is meant to", path,
                    file.bytes, max_bytes);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(file.bytes));
  const std::size_t got = read_some(file.fd, bytes.data(), bytes.size(), path);
  if (got != bytes.size())
    throw FileError("{}: had {} bytes when opened but ended after {}: is another process writing to it?", path,
                    bytes.size(), got);
  if (is_gzip(bytes)) return gunzip(bytes, path, max_bytes);
  // A Git LFS pointer is never the intended content; a web page may be.
  if (const std::string why = mistaken_download(std::as_bytes(std::span(bytes))); why.find("LFS") != std::string::npos)
    throw FileError("{}: cannot be read.{}", path, why);
  return bytes;
}

std::vector<std::string> read_lines(const std::string& path, std::uint64_t max_bytes) {
  const std::vector<std::uint8_t> bytes = read_file(path, max_bytes);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  check_utf8(text, path);
  text = without_mark(text);
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace lockstep::data
