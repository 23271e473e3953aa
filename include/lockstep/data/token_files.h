// Token ids for language models: windows of a long sequence with each token's successor as target.
//
// GPT-2, nanoGPT and llm.c train so: all documents stand behind each other, with an end-of-text token after each, and
// the sequence is cut into windows of T tokens. No window has padding; a document may go on in the next window, and a
// window may have several documents, which attention does not part.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

class MappedTokens;
class Tokenizer;

enum class TokenType { kUint16, kUint32 };
enum class TokenFormat {
  kRaw,   // ids and nothing else, as nanoGPT writes them
  kLlmC,  // behind llm.c's header of 256 int32: magic number (20240520 for uint16, 20240801 for uint32), version, count
  kNpy,   // one-dimensional, as numpy.save() writes it
};

struct TokenWindowOptions {
  std::int64_t length = 1024;  // T, tokens per window
  // Tokens from the start of one window to the next; 0: length, so that windows do not overlap.
  std::int64_t stride = 0;
  // An id that is not below is an error; 0: not checked. An embedding of fewer rows would fail without naming the file.
  std::int64_t vocabulary_size = 0;
};

struct TokenFileOptions {
  std::int64_t length = 1024, stride = 0, vocabulary_size = 0;  // as in TokenWindowOptions
  TokenType type = TokenType::kUint16;                          // of raw files, which do not say it
};

// Windows of files that are mapped, not read: their size does not count as memory of the process. Sample i is
// {(T) int64, (T) int64}: the tokens from i * stride to i * stride + T - 1 of a file and, as targets, those from
// i * stride + 1 to i * stride + T. The windows of the second file follow those of the first; none has tokens of two
// files, and an incomplete last window of a file is skipped. Copies share the mapping.
class TokenFiles : public FixedShapeDataset {
 public:
  // Files of the three formats, in any mixture: the first bytes say which. A .npy has integers of any size, in this
  // machine's byte order. Throws FileError, with what was expected and found, for a missing file, an odd length, a
  // count that contradicts the size, and fewer than T + 1 tokens in a file; InvalidArgument for no path and for options
  // below 0.
  explicit TokenFiles(const std::vector<std::string>& paths, const TokenFileOptions& options = {});

  std::int64_t tokens() const;  // in all files
  std::int64_t size() const override;
  std::vector<TensorSpec> element_spec() const override;
  // Throws FileError, with file and position, for an id that is negative or not below vocabulary_size.
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  struct Part {
    std::shared_ptr<const MappedTokens> tokens;
    std::int64_t first_window = 0;
  };
  TokenFileOptions options_;
  std::vector<Part> parts_;
  std::int64_t size_ = 0;
};

// The same windows of ids in memory. Copies share them.
class TokenSequences : public FixedShapeDataset {
 public:
  // Throws InvalidArgument for fewer than T + 1 ids, for ids that are negative, above 2^31 - 1 or not below
  // vocabulary_size, with the position, and for options below 0.
  explicit TokenSequences(std::span<const std::int64_t> ids, const TokenWindowOptions& options = {});

  std::int64_t tokens() const { return static_cast<std::int64_t>(ids_->size()); }
  std::int64_t size() const override;
  std::vector<TensorSpec> element_spec() const override;
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  TokenWindowOptions options_;
  std::shared_ptr<const std::vector<std::int32_t>> ids_;
};

struct PackOptions {
  std::int64_t length = 1024;   // T
  std::int64_t separator = -1;  // the id after each document: that of "<|endoftext|>" for GPT-2. Has to be given.
  std::int64_t vocabulary_size = 0;
};

// Packs documents, lists of ids, into windows without padding: all documents in their order, each followed by the
// separator. At most the last T tokens stand in no window. An empty document gives a separator. Throws as
// TokenSequences.
TokenSequences pack_sequences(std::span<const std::vector<std::int64_t>> documents, const PackOptions& options);

// Reads a UTF-8 text, plain or gzip, and gives the windows of its tokens. No special tokens are added. The default
// vocabulary_size is the tokenizer's. Throws FileError where read_file() does, for text that is not UTF-8 (with byte
// and line) and for fewer than T + 1 tokens.
TokenSequences tokenize_file(const std::string& path, const Tokenizer& tokenizer,
                             const TokenWindowOptions& options = {}, std::uint64_t max_bytes = kMaxFileBytes);

struct WriteTokensOptions {
  TokenFormat format = TokenFormat::kRaw;
  TokenType type = TokenType::kUint16;
};

// Writes a file for TokenFiles, nanoGPT, llm.c or NumPy. A file of this name is replaced when the new one is complete.
// Throws InvalidArgument, with the position, for an id that the type cannot hold, and FileError if writing fails.
void write_tokens(const std::string& path, std::span<const std::int64_t> ids, const WriteTokensOptions& options = {});

}  // namespace lockstep::data
#pragma GCC visibility pop
