// In place of the files for tokenizer.json, in a build without PCRE2 or utf8proc.
#include "lockstep/core/error.h"
#include "src/data/tokenizers/tokenizer_file.h"

namespace lockstep::data {

std::shared_ptr<const TokenizerFile> open_json_tokenizer(const std::string& path) {
  throw Error(
      "Tokenizer: {}: this build of Lockstep cannot read tokenizer.json: install libpcre2-dev and libutf8proc-dev, "
      "configure the build again (meson configure BUILD -Dtokenizers=enabled) and compile it",
      path);
}

}  // namespace lockstep::data
