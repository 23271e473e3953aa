#include "src/train/files/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "lockstep/core/error.h"
#include "src/core/process/file_kind.h"
#include "src/data/formats/json_depth.h"

namespace lockstep::train {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian, and are written as they lie in memory");

namespace {

constexpr std::size_t kMaxHeaderBytes = std::size_t{100} << 20;  // the reference implementation's bound

constexpr std::size_t kMostShown = 200;  // bytes of a mistaken value in a message

constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<DType, const char*>, 8> kTypeNames = {{{DType::kFloat32, "F32"},
                                                                      {DType::kFloat64, "F64"},
                                                                      {DType::kFloat16, "F16"},
                                                                      {DType::kBFloat16, "BF16"},
                                                                      {DType::kInt8, "I8"},
                                                                      {DType::kUInt8, "U8"},
                                                                      {DType::kInt32, "I32"},
                                                                      {DType::kInt64, "I64"}}};

const char* type_name(DType dtype) {
  return std::find_if(kTypeNames.begin(), kTypeNames.end(), [&](const auto& entry) { return entry.first == dtype; })
      ->second;
}

std::string known_types() {
  std::string names;
  for (const auto& [type, name] : kTypeNames) names += std::string(names.empty() ? "" : ", ") + name;
  return names;
}

std::string numbers_text(std::span<const std::int64_t> numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += fmt::format("{}{}", text.empty() ? "" : ",", number);
  return text;
}

// The list `key` of an entry. Throws for fractions, which the JSON library would round.
const nlohmann::json& whole_numbers(const nlohmann::json& entry, const char* key, const std::string& name,
                                    const std::string& path) {
  const nlohmann::json& list = entry.at(key);
  if (!list.is_array() ||
      !std::all_of(list.begin(), list.end(), [](const auto& each) { return each.is_number_unsigned(); }))
    throw FileError("{}: the header is damaged: {} of tensor '{}' is {}, expected a list of whole numbers", path, key,
                    name, list.dump().substr(0, kMostShown));
  return list;
}

// The place of a tensor's bytes.
std::span<const std::byte> data_of(const std::string& name, const nlohmann::json& entry,
                                   std::span<const std::byte> data, const std::string& path) {
  const nlohmann::json& list = whole_numbers(entry, "data_offsets", name, path);
  if (list.size() != 2)
    throw FileError("{}: the header is damaged: tensor '{}' has {} data_offsets, expected 2", path, name, list.size());
  const auto offsets = list.get<std::array<std::uint64_t, 2>>();
  if (offsets[0] > offsets[1] || offsets[1] > data.size())
    throw FileError("{}: tensor '{}' lies at {}..{} of {} bytes", path, name, offsets[0], offsets[1], data.size());
  return data.subspan(offsets[0], offsets[1] - offsets[0]);
}

// Adds the tensor to saved.tensors or saved.unread; returns the place of its bytes.
SavedTensor parse_entry(const std::string& name, const nlohmann::json& entry, std::span<const std::byte> data,
                        const std::string& path, SavedTensors& saved) {
  const auto type = entry.at("dtype").get<std::string>();
  const auto extents = whole_numbers(entry, "shape", name, path).get<std::vector<std::int64_t>>();
  const std::span<const std::byte> bytes = data_of(name, entry, data, path);
  const auto known = std::find_if(kTypeNames.begin(), kTypeNames.end(),
                                  [&](const auto& candidate) { return type == candidate.second; });
  if (known == kTypeNames.end() || extents.size() > Shape::kMaxDims) {
    saved.unread[name] =
        known == kTypeNames.end()
            ? fmt::format("it has the type {}; known are {}", type, known_types())
            : fmt::format("it has {} dimensions, at most {} are possible", extents.size(), Shape::kMaxDims);
    return {name, DType::kUInt8, Shape{0}, bytes};
  }
  const Shape shape{std::span<const std::int64_t>(extents)};
  const std::uint64_t size = size_of(known->first);
  if (bytes.size() % size != 0 || static_cast<std::uint64_t>(shape.count()) != bytes.size() / size)
    throw FileError("{}: tensor '{}' of {} {} has {} bytes", path, name, type, shape.text(), bytes.size());
  return saved.tensors.emplace_back(SavedTensor{name, known->first, shape, bytes});
}

// Looks for a name that the outermost object has twice: a parsed object has only the last one.
class RepeatedName : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::optional<std::string> name;  // the first one that was found

  bool start_object(std::size_t) override { return ++depth_ > 0; }
  bool end_object() override { return --depth_ >= 0; }
  bool key(string_t& key) override {
    if (depth_ != 1 || names_.insert(key).second) return true;
    name = key;
    return false;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }  // parse() reports it

 private:
  int depth_ = 0;
  std::unordered_set<std::string> names_;
};

// Two passes, because a parser with a callback searches an object again for each of its entries.
nlohmann::json parse_header(const char* text, std::uint64_t length, const std::string& path) {
  data::check_json_depth({text, length}, path);
  RepeatedName repeated;
  nlohmann::json::sax_parse(text, text + length, &repeated);
  if (repeated.name) throw FileError("{}: the header is damaged: the name '{}' comes twice", path, *repeated.name);
  return nlohmann::json::parse(text, text + length);
}

// Every byte belongs to exactly one tensor.
void check_cover(std::vector<SavedTensor> tensors, std::span<const std::byte> data, const std::string& path) {
  std::sort(tensors.begin(), tensors.end(), [](const SavedTensor& a, const SavedTensor& b) {
    return a.data.data() != b.data.data() ? a.data.data() < b.data.data() : a.data.size() < b.data.size();
  });
  const std::byte* end = data.data();
  for (const SavedTensor& tensor : tensors) {
    if (tensor.data.data() != end)
      throw FileError("{}: there is a gap or an overlap in front of tensor '{}'", path, tensor.name);
    end += tensor.data.size();
  }
  if (end != data.data() + data.size())
    throw FileError("{}: {} bytes behind the last tensor", path, data.data() + data.size() - end);
}

}  // namespace

// The header is built as text, because an ordered JSON object searches all of its keys for each new one.
std::string safetensors_header(const std::vector<NamedTensor>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  const auto json_text = [](const nlohmann::ordered_json& value) {
    try {
      return value.dump();
    } catch (const nlohmann::json::exception& error) {
      throw InvalidArgument("safetensors: a name or the metadata is no UTF-8: {}", error.what());
    }
  };
  std::string text = "{" + json_text(kMetadata) + ":" + json_text(metadata);
  std::unordered_set<std::string> names = {kMetadata};
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) throw InvalidArgument("safetensors: tensor '{}' is undefined: leave it out", name);
    if (!names.insert(name).second)
      throw InvalidArgument("safetensors: the name '{}' {}", name,
                            name == kMetadata ? "is the format's own" : "comes twice");
    text +=
        fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_text(name),
                    type_name(tensor.dtype()), numbers_text(tensor.shape().extents()), offset, offset + tensor.bytes());
    offset += tensor.bytes();
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes)
    throw InvalidArgument("safetensors: {} tensors' names and metadata take {} bytes, at most {} are read again",
                          tensors.size(), text.size(), kMaxHeaderBytes);
  return text;
}

void write_safetensors(DurableFile& file, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = safetensors_header(tensors, metadata);
  const std::uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const auto& [name, tensor] : tensors) {
    const Tensor host = tensor.to(cpu_device());
    file.write({host.buffer().data(), host.bytes()});
  }
}

std::vector<std::byte> safetensors_bytes(const std::vector<NamedTensor>& tensors,
                                         const std::map<std::string, std::string>& metadata) {
  const std::string header = safetensors_header(tensors, metadata);
  const std::uint64_t length = header.size();
  std::size_t total = sizeof length + header.size();
  for (const auto& [name, tensor] : tensors) total += tensor.bytes();
  std::vector<std::byte> bytes(total);
  std::byte* end = bytes.data();
  const auto add = [&end](const void* more, std::size_t count) {
    if (count != 0) std::memcpy(end, more, count);
    end += count;
  };
  add(&length, sizeof length);
  add(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) {
    const Tensor host = tensor.to(cpu_device());
    add(host.buffer().data(), host.bytes());
  }
  return bytes;
}

SavedTensors parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  std::uint64_t length = 0;
  if (file.size() < sizeof length)
    throw FileError("{}: {} bytes are no safetensors file.{}", path, file.size(), mistaken_download(file));
  std::memcpy(&length, file.data(), sizeof length);
  if (length > kMaxHeaderBytes || length > file.size() - sizeof length)
    throw FileError("{}: a header of {} bytes in a file of {}.{}", path, length, file.size(), mistaken_download(file));
  const char* text = reinterpret_cast<const char*>(file.data()) + sizeof length;
  const std::span<const std::byte> data = file.subspan(sizeof length + length);
  SavedTensors saved;
  std::vector<SavedTensor> all;
  try {
    const auto header = parse_header(text, length, path);
    if (!header.is_object()) throw FileError("{}: the header is damaged: it is no JSON object", path);
    for (const auto& [name, entry] : header.items())
      if (name == kMetadata)
        saved.metadata = entry.get<std::map<std::string, std::string>>();
      else
        all.push_back(parse_entry(name, entry, data, path, saved));
  } catch (const nlohmann::json::exception& error) {
    throw FileError("{}: the header is damaged: {}", path, error.what());
  } catch (const InvalidArgument& error) {
    throw FileError("{}: the header is damaged: {}", path, error.what());
  }
  check_cover(std::move(all), data, path);
  return saved;
}

SavedTensors parse_own_safetensors(std::span<const std::byte> file, const std::string& path) {
  SavedTensors saved = parse_safetensors(file, path);
  if (!saved.unread.empty())
    throw FileError("{}: tensor '{}': {}", path, saved.unread.begin()->first, saved.unread.begin()->second);
  return saved;
}

}  // namespace lockstep::train
