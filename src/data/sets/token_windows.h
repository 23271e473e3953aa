// Windows over a sequence of tokens: what TokenFiles and TokenSequences share.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/batch.h"

namespace lockstep::data {

// `name` is the data set's. Returns the stride, which is not 0.
inline std::int64_t checked_stride(const char* name, std::int64_t length, std::int64_t stride,
                                   std::int64_t vocabulary_size) {
  if (length < 1 || stride < 0 || vocabulary_size < 0)
    throw InvalidArgument("{}: length {} must be positive, stride {} and vocabulary_size {} not negative", name, length,
                          stride, vocabulary_size);
  return stride == 0 ? length : stride;
}

inline std::int64_t windows_of(std::int64_t tokens, std::int64_t length, std::int64_t stride) {
  return tokens <= length ? 0 : (tokens - 1 - length) / stride + 1;
}

inline std::vector<TensorSpec> window_spec(std::int64_t length) {
  return {{{length}, DType::kInt64}, {{length}, DType::kInt64}};
}

}  // namespace lockstep::data
