// The post-processors of tokenizer.json: the special tokens around one text, or a pair of texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

class FileComponent;

// One text, or special tokens, in the order of the result.
struct TemplatePart {
  int text = -1;                  // 0: the first, 1: the second, -1: special tokens
  std::vector<std::int64_t> ids;  // of the special tokens
  std::int64_t type_id = 0;
};

struct PostProcessor {
  std::vector<TemplatePart> single = {{.text = 0}}, pair = {{.text = 0}, {.text = 1, .type_id = 1}};
};

// Throws FileError for kinds and values that are not supported. ByteLevel changes no ids.
PostProcessor post_processor_of(const FileComponent& component);

}  // namespace lockstep::data
