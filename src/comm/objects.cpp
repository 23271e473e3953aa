#include "lockstep/comm/objects.h"

#include <string>

namespace lockstep {

namespace {

// CBOR (RFC 8949) keeps every number as it is; text would lose NaN and the types of numbers.
std::string encode(const nlohmann::json& object) {
  std::string bytes;
  nlohmann::json::to_cbor(object, bytes);
  return bytes;
}

}  // namespace

nlohmann::json broadcast_object(ProcessGroup& group, const nlohmann::json& object, int root, const CallOptions& call) {
  return nlohmann::json::from_cbor(group.broadcast_text(group.rank() == root ? encode(object) : std::string(), root, call));
}

std::vector<nlohmann::json> all_gather_object(ProcessGroup& group, const nlohmann::json& object, const CallOptions& call) {
  std::vector<nlohmann::json> objects;
  for (const std::string& bytes : group.all_gather_text(encode(object), call)) objects.push_back(nlohmann::json::from_cbor(bytes));
  return objects;
}

}  // namespace lockstep
