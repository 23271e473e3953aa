// Tokenizers of published models: text to token ids and back.
//
//   const Tokenizer tokenizer("gpt2/tokenizer.json");
//   const std::vector<std::int64_t> ids = tokenizer.encode("Hello, world!");
//   const std::string text = tokenizer.decode(ids);
//
// Two kinds of files:
// - tokenizer.json of Hugging Face's `tokenizers`, with byte-pair encoding (GPT-2, Llama 3, Qwen2), WordPiece (BERT) or
//   a unigram model (T5, XLM-RoBERTa, ALBERT). The ids are those of `tokenizers`, and of PreTrainedTokenizerFast in
//   `transformers`, for all characters of Unicode 8. For marks, punctuation, letters and numbers of later versions,
//   those depend on the version of PCRE2 and utf8proc. `truncation` and `padding` in a file are ignored. Anything else
//   that a file asks for and that is not supported is a FileError with file, component, kind and the supported kinds.
//   Needs a build with PCRE2 and utf8proc.
// - .model of SentencePiece (Llama 2, T5). Needs a build with libsentencepiece, which is loaded when a file is opened.
// Without a library, the constructor throws an Error that names the package to install.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/version.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

class TokenizerFile;

struct EncodeOptions {
  // Add the tokens of the file's post-processor, such as [CLS] and [SEP]. SentencePiece files have none: see begin,
  // end.
  bool add_special_tokens = true;
  // Only for SentencePiece files, else InvalidArgument: put the token of the model's bos_id before the ids, and that of
  // eos_id after them. InvalidArgument if the model has none.
  bool begin = false, end = false;
};

struct DecodeOptions {
  bool skip_special_tokens = true;  // leave out the special tokens among the ids
};

// Two texts in one sequence, as BERT takes them.
struct PairEncoding {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> type_ids;  // of the same length: which text an id belongs to, as the file says it
};

struct SpecialToken {
  std::string token;
  std::int64_t id = 0;
};

// Copies share the vocabulary. All const members may be called by several threads at once.
class Tokenizer {
 public:
  // Reads a tokenizer.json, a .model file, or a folder: its tokenizer.json, else tokenizer.model, else spiece.model.
  // Throws FileError for a missing, damaged or unsupported file.
  explicit Tokenizer(const std::string& path);

  // Text that contains a special token, such as "<|endoftext|>", gives that token's id, as in `tokenizers`. Throws
  // InvalidArgument, with the byte, for text that is not UTF-8, and for a character that no token of a unigram model
  // has if its file has no unk_id.
  std::vector<std::int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Appends to `ids`. With memory reserved, calls after the first allocate nothing.
  void encode_to(std::string_view text, std::vector<std::int64_t>& ids, const EncodeOptions& options = {}) const;
  // Throws InvalidArgument also for SentencePiece files, which do not say how texts are joined.
  PairEncoding encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options = {}) const;

  // Bytes that are not UTF-8 together become U+FFFD, as in `tokenizers`. Throws InvalidArgument, with its place, for an
  // id that is not in the vocabulary.
  std::string decode(std::span<const std::int64_t> ids, const DecodeOptions& options = {}) const;

  // The highest id, plus one: an embedding of so many rows has one for each id.
  std::int64_t vocabulary_size() const;
  // Empty if no token is spelled so. A byte-level vocabulary spells a space as U+0120, as its file does.
  std::optional<std::int64_t> id_of(std::string_view token) const;
  std::string token_of(std::int64_t id) const;       // throws InvalidArgument for an id that is not in the vocabulary
  std::vector<SpecialToken> special_tokens() const;  // in the order of their ids

  const std::string& path() const;  // the file that was read

 private:
  std::shared_ptr<const TokenizerFile> file_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
