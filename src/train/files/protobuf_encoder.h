// Protocol buffers' wire format, as far as event files need it (protobuf.dev/programming-guides/encoding).
//
// A field is a key, its number * 8 + its wire type, and a value: a varint (7 bits a byte, the lowest first), 4 or 8
// bytes little-endian, or bytes after their count. Fields that are written in the order of their numbers give the same
// bytes as Google's library.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::train::events {

// proto3 leaves a field out that has its type's default, 0 or "", unless it belongs to a `oneof` or is repeated.
enum class Default { kLeftOut, kWritten };

class Message {
 public:
  Message& integer(int field, std::int64_t value, Default at_default = Default::kLeftOut) {
    if (value == 0 && at_default == Default::kLeftOut) return *this;
    key(field, kVarint);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real(int field, double value, Default at_default = Default::kLeftOut) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    if (bits == 0 && at_default == Default::kLeftOut) return *this;
    key(field, kEightBytes);
    little_endian(bits, 8);
    return *this;
  }
  Message& real(int field, float value, Default at_default = Default::kLeftOut) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (bits == 0 && at_default == Default::kLeftOut) return *this;
    key(field, kFourBytes);
    little_endian(bits, 4);
    return *this;
  }
  Message& text(int field, std::string_view value, Default at_default = Default::kLeftOut) {
    if (value.empty() && at_default == Default::kLeftOut) return *this;
    key(field, kCounted);
    varint(value.size());
    data_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.data_, Default::kWritten); }
  // A repeated field of doubles: one key for all.
  Message& reals(int field, std::span<const double> values) {
    if (values.empty()) return *this;
    key(field, kCounted);
    varint(8 * values.size());
    for (const double value : values) little_endian(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }

  const std::string& data() const { return data_; }

 private:
  enum WireType { kVarint = 0, kEightBytes = 1, kCounted = 2, kFourBytes = 5 };

  void key(int field, WireType type) { varint(static_cast<std::uint64_t>(field) * 8 + type); }
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) data_ += static_cast<char>(value | 128);
    data_ += static_cast<char>(value);
  }
  void little_endian(std::uint64_t bits, int bytes) {
    for (; bytes > 0; --bytes, bits >>= 8) data_ += static_cast<char>(bits);
  }

  std::string data_;
};

}  // namespace lockstep::train::events
