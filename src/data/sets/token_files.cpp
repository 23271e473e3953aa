#include "lockstep/data/token_files.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lockstep/core/error.h"
#include "src/data/formats/mapped_file.h"
#include "src/data/formats/npy.h"
#include "src/data/sets/llm_c_header.h"
#include "src/data/sets/token_windows.h"

namespace lockstep::data {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

// The tokens of one mapped file.
class MappedTokens {
 public:
  MappedTokens(const std::string& path, TokenType raw_type) : file_(path) {
    const std::span<const std::uint8_t> bytes = file_.bytes();
    if (is_npy(bytes)) {
      take_npy();
    } else if (!take_llm_c()) {
      width_ = raw_type == TokenType::kUint16 ? 2 : 4;
      values_ = bytes;
      if (bytes.size() % width_ != 0)
        refuse(
            fmt::format("has {} bytes, which are not a multiple of {}, the bytes of a uint{}: is it complete, and of "
                        "this type?",
                        bytes.size(), width_, width_ * 8));
    }
  }

  const std::string& path() const { return file_.path(); }
  std::int64_t count() const { return static_cast<std::int64_t>(values_.size() / width_); }

  void copy(std::int64_t first, std::int64_t limit, std::span<std::int64_t> to) const {
    switch (width_) {
      case 1: is_signed_ ? copy_as<std::int8_t>(first, to) : copy_as<std::uint8_t>(first, to); break;
      case 2: is_signed_ ? copy_as<std::int16_t>(first, to) : copy_as<std::uint16_t>(first, to); break;
      case 4: is_signed_ ? copy_as<std::int32_t>(first, to) : copy_as<std::uint32_t>(first, to); break;
      default: copy_as<std::int64_t>(first, to); break;
    }
    for (std::size_t i = 0; i < to.size(); ++i)
      if (to[i] < 0 || (limit > 0 && to[i] >= limit))
        refuse(fmt::format("token {} is {}; expected {}: is it the file of this vocabulary, and of this type?",
                           first + static_cast<std::int64_t>(i), to[i],
                           limit > 0 ? fmt::format("0 to {}", limit - 1) : "no negative number"));
  }

  [[noreturn]] void refuse(const std::string& why) const { throw FileError("{}: {}", path(), why); }

 private:
  template <typename Value> void copy_as(std::int64_t first, std::span<std::int64_t> to) const {
    const std::uint8_t* from = values_.data() + static_cast<std::size_t>(first) * sizeof(Value);
    for (std::int64_t& each : to) {
      Value value;
      std::memcpy(&value, from, sizeof value);
      each = static_cast<std::int64_t>(value);
      from += sizeof value;
    }
  }

  void take_values(std::size_t begin, std::size_t count, std::size_t width, const char* who) {
    const std::size_t there = file_.bytes().size() - begin;
    if (there % width != 0 || there / width != count)
      refuse(fmt::format("its {} says {} tokens of {} bytes, but {} bytes follow: is the file complete?", who, count,
                         width, there));
    width_ = width;
    values_ = file_.bytes().subspan(begin);
  }

  void take_npy() {
    const NpyHeader header = npy_header(file_.bytes(), [&](const std::string& why) { refuse(why); });
    const std::string& type = header.type;
    const bool is_integer = type.size() == 3 && (type[0] == '<' || type[0] == '|') &&
                            (type[1] == 'i' || type[1] == 'u') &&
                            (type[2] == '1' || type[2] == '2' || type[2] == '4' || type[2] == '8');
    if (!is_integer)
      refuse(fmt::format("has the type '{}'; expected integers, such as uint16 ('<u2') or int64 ('<i8')", type));
    is_signed_ = type[1] == 'i';
    take_values(header.bytes, header.count, static_cast<std::size_t>(type[2] - '0'), "header");
  }

  bool take_llm_c() {
    LlmCHeader header;
    if (file_.bytes().size() < sizeof header.words) return false;
    std::memcpy(header.words, file_.bytes().data(), sizeof header.words);
    if (header.magic() != kLlmCUint16.magic && header.magic() != kLlmCUint32.magic) return false;
    const LlmCKind& kind = header.magic() == kLlmCUint16.magic ? kLlmCUint16 : kLlmCUint32;
    if (header.version() != kind.version)
      refuse(fmt::format("is a token file of llm.c, version {}; expected {}", header.version(), kind.version));
    take_values(sizeof header.words, static_cast<std::size_t>(std::max(header.count(), 0)), kind.width, "llm.c header");
    return true;
  }

  MappedFile file_;
  std::span<const std::uint8_t> values_;
  std::size_t width_ = 2;
  bool is_signed_ = false;
};

TokenFiles::TokenFiles(const std::vector<std::string>& paths, const TokenFileOptions& options) : options_(options) {
  options_.stride = checked_stride("TokenFiles", options.length, options.stride, options.vocabulary_size);
  if (paths.empty()) throw InvalidArgument("TokenFiles: got no paths; expected one file or more");
  for (const std::string& path : paths) {
    const Part& part = parts_.emplace_back(Part{std::make_shared<MappedTokens>(path, options.type), size_});
    const std::int64_t windows = windows_of(part.tokens->count(), options_.length, options_.stride);
    if (windows == 0)
      part.tokens->refuse(
          fmt::format("has {} tokens, too few for a window of {} and its next token: choose a smaller "
                      "length",
                      part.tokens->count(), options_.length));
    size_ += windows;
  }
}

std::int64_t TokenFiles::tokens() const {
  std::int64_t all = 0;
  for (const Part& part : parts_) all += part.tokens->count();
  return all;
}

std::int64_t TokenFiles::size() const { return size_; }
std::vector<TensorSpec> TokenFiles::element_spec() const { return window_spec(options_.length); }

void TokenFiles::read(std::int64_t index, std::int64_t, const Row& row) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("TokenFiles: sample {} does not exist; the set has {}", index, size());
  const auto next = std::upper_bound(parts_.begin(), parts_.end(), index,
                                     [](std::int64_t window, const Part& part) { return window < part.first_window; });
  const Part& part = *std::prev(next);
  const std::int64_t first = (index - part.first_window) * options_.stride;
  const std::span<std::int64_t> inputs = row.span<std::int64_t>(0), targets = row.span<std::int64_t>(1);
  part.tokens->copy(first, options_.vocabulary_size, inputs);
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  part.tokens->copy(first + options_.length, options_.vocabulary_size, targets.last(1));
}

}  // namespace lockstep::data
