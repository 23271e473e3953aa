#include "src/comm/store_claims.h"

namespace lockstep {

bool StoreClaims::take(const std::string& key, Owner owner) {
  Claim& claim = claims_[key];
  if (claim.owner != nullptr && claim.abandoned == 0) return false;
  abandoned_.erase(claim.abandoned);
  claim = {owner, 0};
  return true;
}

void StoreClaims::abandon(const std::string& key, Claim& claim) {
  if (claim.abandoned != 0) return;
  claim.abandoned = ++last_abandoned_;
  abandoned_.emplace(claim.abandoned, key);
}

bool StoreClaims::abandon(const std::string& key, Owner owner) {
  const auto claim = claims_.find(key);
  if (claim == claims_.end() || claim->second.owner != owner) return false;
  abandon(key, claim->second);
  return true;
}

bool StoreClaims::abandon_all(Owner owner) {
  bool had_some = false;
  for (auto& [key, claim] : claims_) {
    if (claim.owner != owner) continue;
    abandon(key, claim);
    claim.owner = nullptr;  // the next connection may lie at its address
    had_some = true;
  }
  return had_some;
}

void StoreClaims::erase(const std::string& key) {
  const auto claim = claims_.find(key);
  if (claim == claims_.end()) return;
  abandoned_.erase(claim->second.abandoned);
  claims_.erase(claim);
}

void StoreClaims::erase_below(std::string_view prefix) {
  const auto is_below = [&](const auto& entry) { return std::string_view(entry.first).starts_with(prefix); };
  std::erase_if(abandoned_, [&](const auto& entry) { return std::string_view(entry.second).starts_with(prefix); });
  std::erase_if(claims_, is_below);
}

std::optional<std::string> StoreClaims::first_abandoned(std::string_view prefix) const {
  for (const auto& [_, key] : abandoned_)
    if (std::string_view(key).starts_with(prefix)) return key;
  return std::nullopt;
}

}  // namespace lockstep
