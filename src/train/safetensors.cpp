#include "src/train/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian, and are written as they lie in memory");

namespace {

constexpr std::size_t kMaxHeaderBytes = std::size_t{100} << 20;  // the reference implementation's bound

constexpr std::array<std::pair<DType, const char*>, 8> kTypeNames = {{{DType::kFloat32, "F32"},
                                                                      {DType::kFloat64, "F64"},
                                                                      {DType::kFloat16, "F16"},
                                                                      {DType::kBFloat16, "BF16"},
                                                                      {DType::kInt8, "I8"},
                                                                      {DType::kUInt8, "U8"},
                                                                      {DType::kInt32, "I32"},
                                                                      {DType::kInt64, "I64"}}};

const char* type_name(DType dtype) {
  return std::find_if(kTypeNames.begin(), kTypeNames.end(), [&](const auto& entry) { return entry.first == dtype; })->second;
}

SavedTensor parse_entry(const std::string& name, const nlohmann::json& entry, std::span<const std::byte> data, const std::string& path) {
  const auto type = entry.at("dtype").get<std::string>();
  const auto known = std::find_if(kTypeNames.begin(), kTypeNames.end(), [&](const auto& candidate) { return type == candidate.second; });
  if (known == kTypeNames.end()) throw FileError("{}: tensor '{}' has the unknown type '{}'", path, name, type);
  const auto extents = entry.at("shape").get<std::vector<std::int64_t>>();
  const Shape shape{std::span<const std::int64_t>(extents)};
  const auto offsets = entry.at("data_offsets").get<std::array<std::uint64_t, 2>>();
  if (offsets[0] > offsets[1] || offsets[1] > data.size())
    throw FileError("{}: tensor '{}' lies at {}..{} of {} bytes", path, name, offsets[0], offsets[1], data.size());
  const std::uint64_t bytes = offsets[1] - offsets[0], size = size_of(known->first);
  if (bytes % size != 0 || static_cast<std::uint64_t>(shape.count()) != bytes / size)
    throw FileError("{}: tensor '{}' of {} {} has {} bytes", path, name, type, shape.text(), bytes);
  return {name, known->first, shape, data.subspan(offsets[0], bytes)};
}

// Every byte belongs to exactly one tensor.
void check_cover(std::vector<SavedTensor> tensors, std::span<const std::byte> data, const std::string& path) {
  std::sort(tensors.begin(), tensors.end(), [](const SavedTensor& a, const SavedTensor& b) {
    return a.data.data() != b.data.data() ? a.data.data() < b.data.data() : a.data.size() < b.data.size();
  });
  const std::byte* end = data.data();
  for (const SavedTensor& tensor : tensors) {
    if (tensor.data.data() != end) throw FileError("{}: there is a gap or an overlap in front of tensor '{}'", path, tensor.name);
    end += tensor.data.size();
  }
  if (end != data.data() + data.size()) throw FileError("{}: {} bytes behind the last tensor", path, data.data() + data.size() - end);
}

}  // namespace

void write_safetensors(DurableFile& file, const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto extents = tensor.shape().extents();
    header[name] = {{"dtype", type_name(tensor.dtype())},
                    {"shape", std::vector<std::int64_t>(extents.begin(), extents.end())},
                    {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const auto& [name, tensor] : tensors) {
    const Tensor host = tensor.to(cpu_device());
    file.write({host.buffer().data(), host.bytes()});
  }
}

SavedTensors parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  std::uint64_t length = 0;
  if (file.size() < sizeof length) throw FileError("{}: {} bytes are no safetensors file", path, file.size());
  std::memcpy(&length, file.data(), sizeof length);
  if (length > kMaxHeaderBytes || length > file.size() - sizeof length)
    throw FileError("{}: a header of {} bytes in a file of {}", path, length, file.size());
  const char* text = reinterpret_cast<const char*>(file.data()) + sizeof length;
  const std::span<const std::byte> data = file.subspan(sizeof length + length);
  SavedTensors saved;
  try {
    const auto header = nlohmann::json::parse(text, text + length);
    for (const auto& [name, entry] : header.items())
      if (name == "__metadata__")
        saved.metadata = entry.get<std::map<std::string, std::string>>();
      else
        saved.tensors.push_back(parse_entry(name, entry, data, path));
  } catch (const nlohmann::json::exception& error) {
    throw FileError("{}: the header is damaged: {}", path, error.what());
  } catch (const InvalidArgument& error) {
    throw FileError("{}: the header is damaged: {}", path, error.what());
  }
  check_cover(saved.tensors, data, path);
  return saved;
}

}  // namespace lockstep
