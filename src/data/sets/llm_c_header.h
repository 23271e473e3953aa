// The header of llm.c's token files (dev/data/data_common.py of karpathy/llm.c): 256 int32, of which three are used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::data {

struct LlmCHeader {
  std::int32_t words[256] = {};
  std::int32_t magic() const { return words[0]; }
  std::int32_t version() const { return words[1]; }
  std::int32_t count() const { return words[2]; }
};

struct LlmCKind {
  std::int32_t magic, version;
  std::size_t width;  // bytes of a token
};
inline constexpr LlmCKind kLlmCUint16 = {20240520, 1, 2};  // GPT-2's tokens
inline constexpr LlmCKind kLlmCUint32 = {20240801, 7, 4};  // Llama 3's

}  // namespace lockstep::data
