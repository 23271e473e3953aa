#include "src/comm/store/store_claims.h"

namespace lockstep {

bool StoreClaims::take(const std::string& key, Owner owner) {
  Claim& claim = claims_[key];
  if (claim.owner != nullptr && claim.abandoned == 0) return false;
  abandoned_.erase(claim.abandoned);
  claim = {owner, 0};
  ++standing_[owner];
  return true;
}

void StoreClaims::abandon(const std::string& key, Claim& claim) {
  if (claim.abandoned != 0) return;
  end(claim);
  claim.abandoned = ++last_abandoned_;
  abandoned_.emplace(claim.abandoned, key);
}

// Ends a claim that was valid.
void StoreClaims::end(const Claim& claim) {
  const auto count = standing_.find(claim.owner);
  if (--count->second == 0) standing_.erase(count);
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
    claim.owner = nullptr;  // the next connection may have the same address
    had_some = true;
  }
  return had_some;
}

bool StoreClaims::is_abandoned(const std::string& key) const {
  const auto claim = claims_.find(key);
  return claim != claims_.end() && claim->second.abandoned != 0;
}

StoreClaims::Claims::iterator StoreClaims::erase(Claims::iterator claim) {
  if (claim->second.abandoned == 0) end(claim->second);
  abandoned_.erase(claim->second.abandoned);
  return claims_.erase(claim);
}

void StoreClaims::erase(const std::string& key) {
  const auto claim = claims_.find(key);
  if (claim == claims_.end()) return;
  erase(claim);
}

void StoreClaims::erase_below(std::string_view prefix) {
  for (auto claim = claims_.begin(); claim != claims_.end();)
    claim = std::string_view(claim->first).starts_with(prefix) ? erase(claim) : std::next(claim);
}

std::optional<std::string> StoreClaims::first_abandoned(std::string_view prefix) const {
  for (const auto& [_, key] : abandoned_)
    if (std::string_view(key).starts_with(prefix)) return key;
  return std::nullopt;
}

}  // namespace lockstep
