// Tokens and their ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::data {

class Vocabulary {
 public:
  // A token's id must be new. Throws InvalidArgument for an id that another token has, a token that has another id, and
  // an id that is negative or above kHighestId.
  void add(std::string_view token, std::int64_t id);

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }  // the highest id, plus one
  std::int32_t find(std::string_view token) const {                                // -1: there is no such token
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  const std::string* token(std::int64_t id) const {  // null: there is no such id
    return id < 0 || id >= size() ? nullptr : tokens_[static_cast<std::size_t>(id)];
  }
  std::size_t longest() const { return longest_; }  // of all tokens, in bytes

  static constexpr std::int64_t kHighestId = (1 << 24) - 1;  // a damaged file does not claim memory without end

 private:
  std::deque<std::string> texts_;  // the map and the list point to these
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::vector<const std::string*> tokens_;  // by id
  std::size_t longest_ = 0;
};

}  // namespace lockstep::data
