#include "lockstep/comm/objects.h"

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

// CBOR (RFC 8949) keeps every number as it is; text would lose NaN and the types of numbers.
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

}  // namespace

nlohmann::json broadcast_object(ProcessGroup& group, const nlohmann::json& object, int root, const CallOptions& call) {
  return decode(group.broadcast_text(group.rank() == root ? encode(object) : std::string(), root, call));
}

std::vector<nlohmann::json> all_gather_object(ProcessGroup& group, const nlohmann::json& object, const CallOptions& call) {
  std::vector<nlohmann::json> objects;
  for (const std::string& bytes : group.all_gather_text(encode(object), call)) objects.push_back(decode(bytes));
  return objects;
}

}  // namespace lockstep
