// The normalizers of tokenizer.json: they change the text before it is cut.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/unicode/text_pattern.h"

namespace lockstep::data {

class FileComponent;

struct NormalizerScratch {
  std::vector<std::int32_t> characters;
  std::string texts[2], decomposed;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Replaces `result`, which is not the text's memory.
  virtual void apply(std::string_view text, NormalizerScratch& scratch, PatternScratch& patterns,
                     std::string& result) const = 0;
};

using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

// Throws FileError for kinds and values that are not supported.
Normalizers normalizers_of(const FileComponent& component);

// The text after all normalizers, in the scratch memory or, without any, where it was.
std::string_view normalized(const Normalizers& normalizers, std::string_view text, NormalizerScratch& scratch,
                            PatternScratch& patterns);

}  // namespace lockstep::data
