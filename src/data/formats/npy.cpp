// The .npy format is described in numpy/lib/format.py: a magic string, a version, a Python dictionary as text, values.
#include "src/data/formats/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace lockstep::data {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// Python's True or False after this key of the header.
bool flag_of(const std::string& header, std::string_view key, const std::function<void(const std::string&)>& refuse) {
  std::string_view rest = header;
  const std::size_t at = rest.find(key);
  rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + key.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  const bool is_set = rest.starts_with("True");
  if (!is_set && !rest.starts_with("False"))
    refuse(fmt::format("has a header without {} True or False: is the file damaged?", key));
  return is_set;
}

// The text between `begin` and `end` in a header such as "{'descr': '<i8', 'fortran_order': False, 'shape': (12,), }".
std::string between(const std::string& header, std::string_view begin, char end) {
  const std::size_t at = header.find(begin);
  if (at == std::string::npos) return {};
  const std::size_t from = at + begin.size(), to = header.find(end, from);
  return to == std::string::npos ? std::string() : header.substr(from, to - from);
}

// "2, 3"
std::string extents_text(std::span<const std::int64_t> shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return text;
}

std::string_view text_of_bytes(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool is_npy(std::span<const std::uint8_t> bytes) { return text_of_bytes(bytes).starts_with(kMagic); }

NpyArrayHeader npy_array_header(std::span<const std::uint8_t> bytes,
                                const std::function<void(const std::string&)>& refuse) {
  const std::size_t length_bytes = bytes.size() > 6 && bytes[6] >= 2 ? 4 : 2, begin = 8 + length_bytes;
  if (!is_npy(bytes) || bytes.size() < begin) refuse("does not begin as a .npy file");
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= std::size_t{bytes[8 + i]} << (8 * i);
  if (length > bytes.size() - begin) refuse("is truncated");
  const std::string text(text_of_bytes(bytes).substr(begin, length)), shape = between(text, "'shape': (", ')');
  NpyArrayHeader header{.type = between(text, "'descr': '", '\''), .bytes = begin + length};
  header.is_fortran_order = flag_of(text, "'fortran_order':", refuse);
  if (text.find("'shape': (") == std::string::npos) refuse("has a header without a shape: is the file damaged?");
  for (std::string_view rest = shape; !rest.empty();) {
    std::int64_t extent = -1;
    const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), extent);
    if (failure != std::errc() || extent < 0) refuse(fmt::format("has the shape ({}): is the file damaged?", shape));
    header.shape.push_back(extent);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    if (rest.empty()) break;
    if (rest.front() != ',') refuse(fmt::format("has the shape ({}): is the file damaged?", shape));
    rest.remove_prefix(1);
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  }
  if (header.shape.size() == 1 && !shape.ends_with(','))  // (3) is no tuple in Python
    refuse(fmt::format("has the shape ({}): is the file damaged?", shape));
  return header;
}

NpyHeader npy_header(std::span<const std::uint8_t> bytes, const std::function<void(const std::string&)>& refuse) {
  NpyArrayHeader header = npy_array_header(bytes, refuse);
  if (header.shape.size() != 1)
    refuse(fmt::format("has the shape ({}); expected one dimension, such as (12,)", extents_text(header.shape)));
  return {std::move(header.type), static_cast<std::size_t>(header.shape[0]), header.bytes};
}

std::string npy_header_text(const std::string& type, std::span<const std::int64_t> shape) {
  constexpr std::size_t kAlignment = 64, kFirst = 10;  // magic string, version 1.0, two bytes of length
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", type,
                                 extents_text(shape), shape.size() == 1 ? "," : "");
  text.resize((kFirst + text.size() + 1 + kAlignment - 1) / kAlignment * kAlignment - kFirst, ' ');
  text.back() = '\n';
  std::string header(kMagic);
  for (const std::size_t byte : {std::size_t{1}, std::size_t{0}, text.size() % 256, text.size() / 256})
    header.push_back(static_cast<char>(byte));
  return header + text;
}

}  // namespace lockstep::data
