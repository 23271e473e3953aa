// Keys that belong to a connection: their owners, and which owners have gone. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lockstep {

class StoreClaims {
 public:
  using Owner = const void*;  // identifies a connection

  // Gives the key to this owner, unless an owner that still exists has it.
  bool take(const std::string& key, Owner owner);
  // Returns false if the key is not this owner's.
  bool abandon(const std::string& key, Owner owner);
  // Abandons all claims of an owner that goes. Returns false if it has none.
  bool abandon_all(Owner owner);

  bool has_any(Owner owner) const { return standing_.count(owner) != 0; }
  bool holds(const std::string& key) const { return claims_.count(key) != 0; }
  bool is_abandoned(const std::string& key) const;
  void erase(const std::string& key);
  void erase_below(std::string_view prefix);

  // The first claim below `prefix` that was abandoned: owners that went later may have gone because of it.
  std::optional<std::string> first_abandoned(std::string_view prefix) const;

 private:
  struct Claim {
    Owner owner = nullptr;        // null: the owner has gone
    std::uint64_t abandoned = 0;  // its number in abandoned_; 0: it is valid
  };
  using Claims = std::unordered_map<std::string, Claim>;

  void abandon(const std::string& key, Claim& claim);
  void end(const Claim& claim);
  Claims::iterator erase(Claims::iterator claim);

  Claims claims_;
  std::unordered_map<Owner, std::size_t> standing_;  // number of valid claims, for owners with at least one
  std::map<std::uint64_t, std::string> abandoned_;   // in order of time
  std::uint64_t last_abandoned_ = 0;
};

}  // namespace lockstep
