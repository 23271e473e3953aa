// Reads the values in a Python pickle, without running anything: names of classes and functions stay names.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

struct PickleValue {
  enum class Kind { kNone, kInteger, kText, kList, kName, kCall };  // kText: bytes, too; kList: tuples, too
  Kind kind = Kind::kNone;
  std::int64_t integer = 0;              // booleans are 0 and 1
  std::string text = {};                 // kName: "numpy.ndarray"
  std::vector<PickleValue*> items = {};  // of a list; of a call: the function's name and its arguments
  const PickleValue* state = nullptr;    // of a call's result: what pickle's BUILD gives it
};

// A pickled value, and all values that it refers to. These may refer to each other in circles.
struct Pickle {
  std::deque<PickleValue> values;
  const PickleValue* value = nullptr;
};

// Returns the pickled value. Reads protocols 2 to 5 with the opcodes that lists, numbers, texts and NumPy's arrays need
// (Lib/pickletools.py of CPython lists them). Throws FileError with `path`, byte and opcode for any other.
Pickle unpickle(std::span<const std::uint8_t> bytes, const std::string& path);

}  // namespace lockstep::data
