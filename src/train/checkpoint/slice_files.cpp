#include "src/train/checkpoint/slice_files.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "src/core/base/digits.h"

namespace lockstep::train::checkpoint {

using nlohmann::json;

namespace {

constexpr const char* kShapes = "whole_shapes";  // in the metadata
constexpr std::size_t kMostDigits = 18;          // of an element's number

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

Shape shape_in(const json& shapes, const std::string& tensor, const std::string& path) {
  const auto found = shapes.find(tensor);
  if (found == shapes.end()) throw FileError("{}: is damaged: it has slices of '{}' but not its shape", path, tensor);
  try {
    return Shape(found->get<std::vector<std::int64_t>>());
  } catch (const std::exception& error) {
    throw FileError("{}: is damaged: the shape of '{}': {}", path, tensor, error.what());
  }
}

json shapes_of(const Shard& shard) {
  const auto text = shard.saved.metadata.find(kShapes);
  json shapes =
      json::parse(text == shard.saved.metadata.end() ? "" : text->second, nullptr, /*allow_exceptions=*/false);
  if (!shapes.is_object())
    throw FileError("{}: is damaged: its metadata does not have the shapes of the tensors", shard.path);
  return shapes;
}

// Joins slices, in the order of the ranks, to whole tensors.
class SliceJoiner {
 public:
  explicit SliceJoiner(std::list<std::vector<std::byte>>& memory) : memory_(memory) {}

  // Throws FileError for elements that come twice, leave a gap, or do not fit the shape.
  void add(const Shard& shard) {
    const json shapes = shapes_of(shard);
    for (const SavedTensor& saved : shard.saved.tensors) {
      SliceName slice;
      if (parse(saved.name, slice))
        add(slice, saved, shape_in(shapes, slice.tensor, shard.path), shard.path);
      else
        tensors_.push_back(saved);
    }
  }

  // Throws FileError if elements are missing at the end of a tensor.
  std::vector<SavedTensor> finish(const std::vector<Shard>& shards) {
    for (auto& [name, whole] : wholes_) {
      if (whole.filled != static_cast<std::size_t>(whole.tensor.shape.count()))
        throw FileError("{}: is damaged: of '{}' {} the {} files of optimizer state have {} elements",
                        shards.front().path, name, whole.tensor.shape.text(), shards.size(), whole.filled);
      tensors_.push_back(whole.tensor);
    }
    return std::move(tensors_);
  }

 private:
  struct Whole {
    SavedTensor tensor;
    std::vector<std::byte>* bytes = nullptr;
    std::size_t filled = 0;  // elements
  };

  void add(const SliceName& slice, const SavedTensor& saved, const Shape& shape, const std::string& path) {
    Whole& whole = wholes_[slice.tensor];
    const std::size_t count = static_cast<std::size_t>(shape.count()), element = size_of(saved.dtype);
    if (whole.bytes == nullptr) {
      whole.bytes = &memory_.emplace_back(count * element);
      whole.tensor = {slice.tensor, saved.dtype, shape, *whole.bytes};
    }
    if (slice.begin != whole.filled || slice.end < slice.begin || slice.end > count ||
        saved.dtype != whole.tensor.dtype || shape != whole.tensor.shape ||
        saved.data.size() != (slice.end - slice.begin) * element)
      throw FileError(
          "{}: is damaged: '{}' of {} elements of {} {} does not follow the {} elements of the files before", path,
          saved.name, saved.shape.count(), name_of(saved.dtype), shape.text(), whole.filled);
    if (!saved.data.empty())
      std::memcpy(whole.bytes->data() + slice.begin * element, saved.data.data(), saved.data.size());
    whole.filled = slice.end;
  }

  std::list<std::vector<std::byte>>& memory_;
  std::map<std::string, Whole> wholes_;
  std::vector<SavedTensor> tensors_;
};

}  // namespace

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
  json shapes = json::object();  // not ordered_json, which searches all of its keys for each new one
  for (const optim::StatePart& part : parts) {
    if (!part.is_slice) continue;
    const auto extents = part.whole.extents();
    shapes[part.name] = std::vector<std::int64_t>(extents.begin(), extents.end());
  }
  return {{kShapes, shapes.dump()}};
}

std::vector<SavedTensor> join_slices(const std::vector<Shard>& shards, std::list<std::vector<std::byte>>& memory) {
  SliceJoiner joiner(memory);
  for (const Shard& shard : shards) joiner.add(shard);
  return joiner.finish(shards);
}

}  // namespace lockstep::train::checkpoint
