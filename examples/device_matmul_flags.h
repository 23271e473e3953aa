// The command line of device_matmul: the sizes of its matrices, and a device.
#pragma once

#include <lockstep/core/error.h>

#include <cstdint>
#include <cstdio>
#include <cxxopts.hpp>
#include <string>

#include "examples/lib/parse_flags.h"

inline constexpr std::int64_t kBlockElements = std::int64_t{64} << 20;  // of the product at once: 256 MiB
inline constexpr std::int64_t kRowsTogether = 64;                       // every block begins on a boundary of 256 bytes
inline constexpr double kLargest = 3;                                   // element of both matrices
inline constexpr double kExactInFloat = 1 << 24, kExactInDouble = 9007199254740992.0;

struct Sizes {
  std::int64_t rows = 0, inner = 0, columns = 0;
  double largest_element() const { return kLargest * kLargest * static_cast<double>(inner); }
};

struct Flags {
  Sizes sizes;
  std::string device;
  bool tutorial = false;
};

// Returns false after printing the text of --help. Throws InvalidArgument for a wrong flag, and for sizes whose sums
// would not be exact.
inline bool read_flags(int argc, char** argv, Flags& flags) {
  cxxopts::Options options("device_matmul", "A matrix product and the sum of its elements, on CPU and GPU.");
  auto add = options.add_options();
  add("rows", "rows of the first matrix", cxxopts::value(flags.sizes.rows)->default_value("10000"));
  add("inner", "columns of the first matrix, rows of the second",
      cxxopts::value(flags.sizes.inner)->default_value("100"));
  add("columns", "columns of the second matrix", cxxopts::value(flags.sizes.columns)->default_value("100000"));
  add("device", "all, cpu, or cuda (an error without a GPU)", cxxopts::value(flags.device)->default_value("all"));
  add("tutorial", "the matrices of TensorFlow's tutorial, whose sum it prints, and those of TensorFlow's guide",
      cxxopts::value(flags.tutorial));
  add("help", "this text");
  const auto parsed = lockstep::examples::parse_naming_flags(options, argc, argv);
  if (parsed.count("help") != 0) {
    std::printf("%s", options.help().c_str());
    return false;
  }
  if (!parsed.unmatched().empty())
    throw lockstep::InvalidArgument("unknown argument '{}', see --help", parsed.unmatched().front());
  if (flags.device != "all" && flags.device != "cpu" && flags.device != "cuda")
    throw lockstep::InvalidArgument("--device {}: expected all, cpu or cuda", flags.device);
  const Sizes& sizes = flags.sizes;
  if (flags.tutorial)
    for (const char* size : {"rows", "inner", "columns"})
      if (parsed.count(size) != 0)
        throw lockstep::InvalidArgument("--tutorial has the tutorial's sizes: leave out --{}", size);
  if (sizes.rows < 1 || sizes.inner < 1 || sizes.columns < 1)
    throw lockstep::InvalidArgument("--rows, --inner and --columns must be positive");
  if (sizes.columns > kBlockElements / kRowsTogether)
    throw lockstep::InvalidArgument("--columns {}: at most {}", sizes.columns, kBlockElements / kRowsTogether);
  if (sizes.largest_element() > kExactInFloat ||
      sizes.largest_element() * static_cast<double>(sizes.rows) * static_cast<double>(sizes.columns) > kExactInDouble)
    throw lockstep::InvalidArgument("{}x{} by {}x{}: float32 would not hold the sums exactly; choose smaller sizes",
                                    sizes.rows, sizes.inner, sizes.inner, sizes.columns);
  return true;
}
