#include "src/data/formats/npz.h"

#include <cstring>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/data/files.h"
#include "src/data/formats/npy.h"
#include "src/data/formats/pickle.h"
#include "src/data/formats/zip.h"

namespace lockstep::data {

namespace {

// The elements in the state of a pickled array: (version, shape, dtype, is Fortran's order, list of the elements).
const PickleValue* elements_of(const PickleValue& value) {
  using Kind = PickleValue::Kind;
  if (value.kind != Kind::kCall || value.state == nullptr || value.state->items.size() != 5) return nullptr;
  if (!value.items[0]->text.ends_with(".multiarray._reconstruct")) return nullptr;
  const PickleValue* const elements = value.state->items[4];
  return elements->kind == Kind::kList ? elements : nullptr;
}

}  // namespace

NpzFile::NpzFile(const std::string& path, std::uint64_t max_bytes)
    : path_(path), max_bytes_(max_bytes), archive_(read_file(path, max_bytes)) {}

void NpzFile::refuse(const std::string& name, const std::string& why) const {
  throw FileError("{}: array '{}' {}", path_, name, why);
}

NpzFile::Array NpzFile::array(const std::string& name) const {
  const std::vector<std::uint8_t> member = unzip(archive_, name + ".npy", path_, max_bytes_);
  const NpyHeader header = npy_header(member, [&](const std::string& why) { refuse(name, why); });
  if (header.count > max_bytes_)
    refuse(name, fmt::format("has the shape ({},), more than the reader takes", header.count));
  Array array{header.type, header.count};
  array.values.assign(member.begin() + static_cast<std::ptrdiff_t>(header.bytes), member.end());
  return array;
}

std::vector<std::int64_t> NpzFile::numbers(const std::string& name) const {
  const Array all = array(name);
  const std::size_t bytes = all.type == "<i8" ? 8 : all.type == "<i4" ? 4 : 0;
  if (bytes == 0) refuse(name, fmt::format("has the type '{}'; expected int64 ('<i8') or int32 ('<i4')", all.type));
  if (all.values.size() != all.count * bytes)
    refuse(name, fmt::format("has {} bytes of values; its shape ({},) needs {}", all.values.size(), all.count,
                             all.count * bytes));
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < all.count; ++i) {
    std::int64_t wide = 0;
    std::int32_t narrow = 0;
    std::memcpy(bytes == 8 ? static_cast<void*>(&wide) : &narrow, all.values.data() + i * bytes, bytes);
    numbers.push_back(bytes == 8 ? wide : narrow);
  }
  return numbers;
}

std::vector<std::vector<std::int64_t>> NpzFile::lists(const std::string& name) const {
  const Array all = array(name);
  if (all.type != "|O") refuse(name, fmt::format("has the type '{}'; expected objects ('|O')", all.type));
  const Pickle pickle = unpickle(all.values, path_);
  const PickleValue* const elements = elements_of(*pickle.value);
  if (elements == nullptr || elements->items.size() != all.count)
    refuse(name, fmt::format("is not a pickled array of {} objects", all.count));
  std::vector<std::vector<std::int64_t>> lists;
  for (const PickleValue* const element : elements->items) {
    std::vector<std::int64_t>& list = lists.emplace_back();
    if (element->kind != PickleValue::Kind::kList) refuse(name, fmt::format("has no list in row {}", lists.size() - 1));
    for (const PickleValue* const item : element->items) {
      if (item->kind != PickleValue::Kind::kInteger)
        refuse(name, fmt::format("has a value that is not an integer in row {}", lists.size() - 1));
      list.push_back(item->integer);
    }
  }
  return lists;
}

}  // namespace lockstep::data
