#include "src/data/token_models/vocabulary.h"

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep::data {

void Vocabulary::add(std::string_view token, std::int64_t id) {
  if (id < 0 || id > kHighestId)
    throw InvalidArgument("token '{}' has the id {}; expected 0 to {}", token, id, kHighestId);
  if (const std::string* const other = this->token(id))
    throw InvalidArgument("tokens '{}' and '{}' have the same id {}", *other, token, id);
  if (const std::int32_t other = find(token); other >= 0)
    throw InvalidArgument("token '{}' has two ids, {} and {}", token, other, id);
  const std::string& text = texts_.emplace_back(token);
  ids_.emplace(text, static_cast<std::int32_t>(id));
  if (id >= size()) tokens_.resize(static_cast<std::size_t>(id) + 1);
  tokens_[static_cast<std::size_t>(id)] = &text;
  longest_ = std::max(longest_, token.size());
}

}  // namespace lockstep::data
