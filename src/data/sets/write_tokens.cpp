// Writes token files.
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/data/token_files.h"
#include "src/data/formats/npy.h"
#include "src/data/sets/llm_c_header.h"

namespace lockstep::data {

namespace {

std::string token_file_header(std::size_t count, const WriteTokensOptions& options) {
  const bool is_narrow = options.type == TokenType::kUint16;
  if (options.format == TokenFormat::kNpy)
    return npy_header_text(is_narrow ? "<u2" : "<u4", std::array{static_cast<std::int64_t>(count)});
  if (options.format == TokenFormat::kRaw) return "";
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw InvalidArgument("write_tokens: {} tokens are more than the header of llm.c can say: write several files",
                          count);
  const LlmCKind& kind = is_narrow ? kLlmCUint16 : kLlmCUint32;
  LlmCHeader header;
  header.words[0] = kind.magic;
  header.words[1] = kind.version;
  header.words[2] = static_cast<std::int32_t>(count);
  return {reinterpret_cast<const char*>(header.words), sizeof header.words};
}

template <typename Value>
void write_values(std::ofstream& file, std::span<const std::int64_t> ids, const std::string& path) {
  constexpr std::size_t kAtOnce = 1 << 16;
  std::vector<Value> values;
  for (std::size_t at = 0; at < ids.size(); ++at) {
    if (ids[at] < 0 || ids[at] > std::int64_t{std::numeric_limits<Value>::max()})
      throw InvalidArgument("write_tokens: {}: token {} is {}, which uint{} cannot hold: expected 0 to {}", path, at,
                            ids[at], sizeof(Value) * 8, std::numeric_limits<Value>::max());
    values.push_back(static_cast<Value>(ids[at]));
    if (values.size() < kAtOnce && at + 1 < ids.size()) continue;
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(Value)));
    values.clear();
  }
}

}  // namespace

void write_tokens(const std::string& path, std::span<const std::int64_t> ids, const WriteTokensOptions& options) {
  const std::string header = token_file_header(ids.size(), options), part = path + ".part";
  errno = 0;
  std::ofstream file(part, std::ios::binary);
  if (!file) throw FileError("{}: cannot be made: {}", part, std::strerror(errno));
  try {
    file.write(header.data(), static_cast<std::streamsize>(header.size()));
    options.type == TokenType::kUint16 ? write_values<std::uint16_t>(file, ids, path)
                                       : write_values<std::uint32_t>(file, ids, path);
    errno = 0;
    file.close();
    if (!file)
      throw FileError("{}: cannot be written: {}", part, errno == 0 ? "the disk refused it" : std::strerror(errno));
    std::error_code failure;
    std::filesystem::rename(part, path, failure);
    if (failure) throw FileError("{}: cannot be renamed to {}: {}", part, path, failure.message());
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw;
  }
}

}  // namespace lockstep::data
