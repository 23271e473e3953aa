#include "lockstep/comm/objects.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

// CBOR (RFC 8949) keeps every number exactly; JSON text would lose NaN and the types of numbers.
std::string encode(const nlohmann::json& object) {
  std::string bytes;
  nlohmann::json::to_cbor(object, bytes);
  return bytes;
}

nlohmann::json decode(const std::string& bytes) {
  try {
    return nlohmann::json::from_cbor(bytes, true, true, nlohmann::json::cbor_tag_handler_t::store);
  } catch (const nlohmann::json::exception& error) {
    throw Error("a peer's object cannot be read: {}", error.what());
  }
}

// Texts are in host memory, on whatever device the caller's other data is.
CallOptions for_host_memory(CallOptions call) {
  call.device = DeviceKind::kCpu;
  return call;
}

}  // namespace

std::string ProcessGroup::broadcast_text(std::string_view text, int root, const CallOptions& options) {
  const CallOptions call = for_host_memory(options);
  auto bytes = static_cast<std::int64_t>(text.size());
  broadcast(&bytes, 1, DType::kInt64, root, call);
  std::string result(rank() == root ? text : std::string_view());
  result.resize(static_cast<std::size_t>(bytes));
  broadcast(result.data(), result.size(), DType::kUInt8, root, call);
  return result;
}

std::vector<std::string> ProcessGroup::all_gather_text(std::string_view text, const CallOptions& options) {
  const CallOptions call = for_host_memory(options);
  const auto ranks = static_cast<std::size_t>(world_size());
  const auto mine = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths(ranks);
  all_gather(&mine, lengths.data(), 1, DType::kInt64, call);
  const std::vector<std::size_t> counts(lengths.begin(), lengths.end());
  std::string all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), '\0');
  all_gather(text.data(), all.data(), counts, DType::kUInt8, call);
  std::vector<std::string> texts;
  for (std::size_t r = 0, at = 0; r < ranks; at += counts[r++]) texts.push_back(all.substr(at, counts[r]));
  return texts;
}

nlohmann::json broadcast_object(ProcessGroup& group, const nlohmann::json& object, int root, const CallOptions& call) {
  return decode(group.broadcast_text(group.rank() == root ? encode(object) : std::string(), root, call));
}

std::vector<nlohmann::json> all_gather_object(ProcessGroup& group, const nlohmann::json& object,
                                              const CallOptions& call) {
  std::vector<nlohmann::json> objects;
  for (const std::string& bytes : group.all_gather_text(encode(object), call)) objects.push_back(decode(bytes));
  return objects;
}

}  // namespace lockstep
