// The decoders of tokenizer.json: from tokens back to a text.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace lockstep::data {

class FileComponent;

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  // Changes the list of tokens, which are a text when joined. Bytes stay UTF-8.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
};

using TokenDecoders = std::vector<std::unique_ptr<TokenDecoder>>;

// Throws FileError for kinds and values that are not supported.
TokenDecoders decoders_of(const FileComponent& component);

}  // namespace lockstep::data
