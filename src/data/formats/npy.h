// The header of NumPy's .npy files.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace lockstep::data {

struct NpyHeader {
  std::string type;       // "<i8", "|O"
  std::size_t count = 0;  // of the elements of the only dimension
  std::size_t bytes = 0;  // of the header: the values begin there
};

bool is_npy(std::span<const std::uint8_t> bytes);

// Calls `refuse`, which must throw, with the reason for bytes that do not begin as a one-dimensional array.
NpyHeader npy_header(std::span<const std::uint8_t> bytes, const std::function<void(const std::string&)>& refuse);

// The header of an array with this type and count.
std::string npy_header_text(const std::string& type, std::size_t count);

}  // namespace lockstep::data
