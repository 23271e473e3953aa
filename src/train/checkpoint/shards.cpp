#include "src/train/checkpoint/shards.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "src/core/base/digits.h"

namespace lockstep::checkpoint {

namespace {

constexpr std::string_view kOptimizerPart = "optimizer-", kRankPart = "rank-", kBetween = "-of-", kEnd = ".safetensors";
constexpr std::size_t kDigits = 5;
constexpr const char* kShapes = "whole_shapes";  // in the metadata
constexpr std::size_t kMostDigits = 18;          // of an element's number

std::string numbered_name(std::string_view begin, int rank, int ranks) {
  return fmt::format("{}{:0{}}{}{:0{}}{}", begin, rank + 1, kDigits, kBetween, ranks, kDigits, kEnd);
}

bool is_numbered_name(std::string_view begin, std::string_view name) {
  if (name.size() != begin.size() + kBetween.size() + kEnd.size() + 2 * kDigits) return false;
  const auto take = [&name](std::size_t count) {
    const std::string_view taken = name.substr(0, count);
    name.remove_prefix(count);
    return taken;
  };
  if (take(begin.size()) != begin || !is_digits(take(kDigits))) return false;
  return take(kBetween.size()) == kBetween && is_digits(take(kDigits)) && name == kEnd;
}

// "name[begin:end]"
struct SliceName {
  std::string tensor;
  std::size_t begin = 0, end = 0;
};

bool parse(const std::string& name, SliceName& slice) {
  const std::size_t open = name.rfind('['), colon = name.rfind(':');
  if (open == name.npos || colon == name.npos || colon < open || name.back() != ']') return false;
  const std::string begin = name.substr(open + 1, colon - open - 1),
                    end = name.substr(colon + 1, name.size() - colon - 2);
  if (!is_digits(begin) || !is_digits(end) || begin.size() > kMostDigits || end.size() > kMostDigits) return false;
  slice = {name.substr(0, open), std::stoull(begin), std::stoull(end)};
  return true;
}

// A tensor that is put together.
struct Whole {
  SavedTensor tensor;
  std::vector<std::byte>* bytes = nullptr;
  std::size_t filled = 0;  // elements
};

Shape shape_in(const nlohmann::json& shapes, const std::string& tensor, const std::string& path) {
  const auto found = shapes.find(tensor);
  if (found == shapes.end()) throw FileError("{}: is damaged: it has slices of '{}' and not its shape", path, tensor);
  try {
    return Shape(found->get<std::vector<std::int64_t>>());
  } catch (const std::exception& error) {
    throw FileError("{}: is damaged: the shape of '{}': {}", path, tensor, error.what());
  }
}

nlohmann::json shapes_of(const Shard& shard) {
  const auto text = shard.saved.metadata.find(kShapes);
  nlohmann::json shapes = nlohmann::json::parse(text == shard.saved.metadata.end() ? "" : text->second, nullptr,
                                                /*allow_exceptions=*/false);
  if (!shapes.is_object())
    throw FileError("{}: is damaged: its metadata does not have the shapes of the tensors", shard.path);
  return shapes;
}

}  // namespace

std::string shard_name(int rank, int ranks) { return numbered_name(kOptimizerPart, rank, ranks); }
bool is_shard_name(std::string_view name) { return is_numbered_name(kOptimizerPart, name); }

std::string rank_name(int rank, int ranks) { return numbered_name(kRankPart, rank, ranks); }
bool is_rank_name(std::string_view name) { return is_numbered_name(kRankPart, name); }

std::vector<NamedTensor> shard_of(const std::vector<optim::StatePart>& parts, int rank) {
  std::vector<NamedTensor> tensors;
  for (const optim::StatePart& part : parts) {
    if (part.is_slice && part.values.count() != 0)
      tensors.push_back(
          {fmt::format("{}[{}:{}]", part.name, part.begin, part.begin + part.values.count()), part.values});
    else if (!part.is_slice && rank == 0)
      tensors.push_back({part.name, part.values});
  }
  return tensors;
}

std::map<std::string, std::string> shard_metadata(const std::vector<optim::StatePart>& parts) {
  nlohmann::json shapes =
      nlohmann::json::object();  // not ordered_json, which searches all of its keys for each new one
  for (const optim::StatePart& part : parts) {
    if (!part.is_slice) continue;
    const auto extents = part.whole.extents();
    shapes[part.name] = std::vector<std::int64_t>(extents.begin(), extents.end());
  }
  return {{kShapes, shapes.dump()}};
}

std::vector<SavedTensor> put_together(const std::vector<Shard>& shards, std::list<std::vector<std::byte>>& memory) {
  std::vector<SavedTensor> tensors;
  std::map<std::string, Whole> wholes;
  for (const Shard& shard : shards) {
    const nlohmann::json shapes = shapes_of(shard);
    for (const SavedTensor& saved : shard.saved.tensors) {
      SliceName slice;
      if (!parse(saved.name, slice)) {
        tensors.push_back(saved);
        continue;
      }
      Whole& whole = wholes[slice.tensor];
      const Shape shape = shape_in(shapes, slice.tensor, shard.path);
      const std::size_t count = static_cast<std::size_t>(shape.count()), element = size_of(saved.dtype);
      if (whole.bytes == nullptr) {
        whole.bytes = &memory.emplace_back(count * element);
        whole.tensor = {slice.tensor, saved.dtype, shape, *whole.bytes};
      }
      if (slice.begin != whole.filled || slice.end < slice.begin || slice.end > count ||
          saved.dtype != whole.tensor.dtype || shape != whole.tensor.shape ||
          saved.data.size() != (slice.end - slice.begin) * element)
        throw FileError(
            "{}: is damaged: '{}' of {} elements of {} {} does not follow the {} elements of the files before",
            shard.path, saved.name, saved.shape.count(), name_of(saved.dtype), shape.text(), whole.filled);
      if (!saved.data.empty())
        std::memcpy(whole.bytes->data() + slice.begin * element, saved.data.data(), saved.data.size());
      whole.filled = slice.end;
    }
  }
  for (auto& [name, whole] : wholes) {
    if (whole.filled != static_cast<std::size_t>(whole.tensor.shape.count()))
      throw FileError("{}: is damaged: of '{}' {} the {} files of optimizer state have {} elements",
                      shards.front().path, name, whole.tensor.shape.text(), shards.size(), whole.filled);
    tensors.push_back(whole.tensor);
  }
  return tensors;
}

}  // namespace lockstep::checkpoint
