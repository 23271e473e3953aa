// Keys that belong to a connection: their owners, and owners that have gone. Not thread-safe.
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
  using Owner = const void*;  // a connection

  // Makes the key this owner's, unless an owner that is still there has it.
  bool take(const std::string& key, Owner owner);
  // False: it is not this owner's.
  bool abandon(const std::string& key, Owner owner);
  // All claims of an owner that goes; false: it has none.
  bool abandon_all(Owner owner);

  bool has_any(Owner owner) const { return standing_.count(owner) != 0; }
  bool holds(const std::string& key) const { return claims_.count(key) != 0; }
  bool is_abandoned(const std::string& key) const;
  void erase(const std::string& key);
  void erase_below(std::string_view prefix);

  // Of the abandoned ones below `prefix` the first that was: owners that went later may have gone because of it.
  std::optional<std::string> first_abandoned(std::string_view prefix) const;

 private:
  struct Claim {
    Owner owner = nullptr;        // null: it has gone
    std::uint64_t abandoned = 0;  // its number in abandoned_; 0: it stands
  };
  using Claims = std::unordered_map<std::string, Claim>;

  void abandon(const std::string& key, Claim& claim);
  void end(const Claim& claim);
  Claims::iterator erase(Claims::iterator claim);

  Claims claims_;
  std::unordered_map<Owner, std::size_t> standing_;  // how many, of owners that have some
  std::map<std::uint64_t, std::string> abandoned_;   // in the order of time
  std::uint64_t last_abandoned_ = 0;
};

}  // namespace lockstep
