// The header of NumPy's .npy files.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

struct NpyArrayHeader {
  std::string type;                 // "<i8", "|O"
  std::vector<std::int64_t> shape;  // empty: a single value
  bool is_fortran_order = false;
  std::size_t bytes = 0;  // of the header: the values begin there
};
struct NpyHeader {
  std::string type;
  std::size_t count = 0;  // of the elements of the only dimension
  std::size_t bytes = 0;
};

bool is_npy(std::span<const std::uint8_t> bytes);

// Both call `refuse`, which must throw, with the reason for bytes that do not begin as an array, and npy_header() also
// for more or fewer dimensions than one.
NpyArrayHeader npy_array_header(std::span<const std::uint8_t> bytes,
                                const std::function<void(const std::string&)>& refuse);
NpyHeader npy_header(std::span<const std::uint8_t> bytes, const std::function<void(const std::string&)>& refuse);

// The header of an array with this type and shape.
std::string npy_header_text(const std::string& type, std::span<const std::int64_t> shape);

}  // namespace lockstep::data
