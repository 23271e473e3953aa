// The pre-tokenizers of tokenizer.json: they cut a text into words.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/data/tokenizers/cut_text.h"
#include "src/data/unicode/text_pattern.h"

namespace lockstep::data {

class FileComponent;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void cut(CutText& text, PatternScratch& scratch) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  // The last step spells bytes as ByteLevel does. It is not among the steps: the model does it for its vocabulary.
  bool ends_in_byte_level = false;
};

// Throws FileError for kinds and values that are not supported.
PreTokenizers pre_tokenizers_of(const FileComponent& component);

}  // namespace lockstep::data
