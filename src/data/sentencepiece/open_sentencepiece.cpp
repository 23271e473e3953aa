// Opens SentencePiece's .model files through the module that has the library.
#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/files.h"
#include "src/core/base/own_module.h"
#include "src/data/sentencepiece/sentencepiece_library.h"
#include "src/data/tokenizers/tokenizer_file.h"

namespace lockstep::data {

namespace {

TextSink sink(std::string& text) {
  return {&text,
          [](void* to, const char* more, std::size_t bytes) { static_cast<std::string*>(to)->append(more, bytes); }};
}

IdSink sink(std::vector<std::int64_t>& ids) {
  return {&ids, [](void* to, const int* more, std::size_t count) {
            auto& all = *static_cast<std::vector<std::int64_t>*>(to);
            all.insert(all.end(), more, more + count);
          }};
}

SentencePieceOpen load_module(const std::string& path) {
  const OwnModule module = load_own_module(kSentencePieceFile, "src/data/sentencepiece");
  if (module.handle == nullptr && !module.file.empty())
    throw Error(
        "Tokenizer: {}: {} cannot be loaded: {}: install libsentencepiece0, or the package of your system "
        "that has libsentencepiece",
        path, module.file, module.error);
  if (module.handle == nullptr)
    throw Error(
        "Tokenizer: {}: SentencePiece's files need {}, which cannot be loaded ({}): install libsentencepiece-dev, "
        "configure "
        "the build of Lockstep again (meson configure BUILD -Dsentencepiece=enabled) and compile it; or put the "
        "module's "
        "folder into LD_LIBRARY_PATH",
        path, kSentencePieceFile, module.error);
  const auto open = reinterpret_cast<SentencePieceOpen>(::dlsym(module.handle, kSentencePieceOpen));
  if (open == nullptr) throw Error("Tokenizer: {}: {} is not Lockstep's module", path, kSentencePieceFile);
  return open;
}

class SentencePieceFile : public TokenizerFile {
 public:
  SentencePieceFile(const std::string& path, SentencePieceModel* model) : TokenizerFile(path), model_(model) {}
  ~SentencePieceFile() override { model_->close(); }

  void encode(std::string_view text, const EncodeOptions& options, std::vector<std::int64_t>& ids) const override {
    if (options.begin) ids.push_back(required(model_->begin_id(), "begin", "bos_id"));
    std::string error;
    if (!model_->encode(text.data(), text.size(), sink(ids), sink(error))) fail("encode", error);
    if (options.end) ids.push_back(required(model_->end_id(), "end", "eos_id"));
  }

  PairEncoding encode_pair(std::string_view, std::string_view, const EncodeOptions&) const override {
    throw InvalidArgument("Tokenizer: encode_pair: {} does not say how two texts are joined: encode each by itself",
                          path());
  }

  std::string decode(std::span<const std::int64_t> ids, const DecodeOptions& options) const override {
    std::vector<int> wanted;
    for (const std::int64_t id : ids)
      if (!options.skip_special_tokens || !model_->is_special(static_cast<int>(id)))
        wanted.push_back(static_cast<int>(id));
    std::string text, error;
    if (!model_->decode(wanted.data(), wanted.size(), sink(text), sink(error))) fail("decode", error);
    return text;
  }

  std::int64_t vocabulary_size() const override { return model_->size(); }
  bool has_id(std::int64_t id) const override { return id >= 0 && id < model_->size(); }

  std::optional<std::int64_t> id_of(std::string_view token) const override {
    const int id = model_->id_of(token.data(), token.size());
    return id < 0 ? std::nullopt : std::optional<std::int64_t>(id);
  }

  std::optional<std::string> token_of(std::int64_t id) const override {
    if (!has_id(id)) return std::nullopt;
    std::string token;
    model_->token_of(static_cast<int>(id), sink(token));
    return token;
  }

  std::vector<SpecialToken> special_tokens() const override {
    std::vector<SpecialToken> special;
    for (int id = 0; id < model_->size(); ++id)
      if (model_->is_special(id)) special.push_back({token_of(id).value(), id});
    return special;
  }

 private:
  int required(int id, const char* option, const char* name) const {
    if (id < 0) throw InvalidArgument("Tokenizer: EncodeOptions::{} is set, but {} has no {}", option, path(), name);
    return id;
  }
  [[noreturn]] void fail(const char* operation, const std::string& error) const {
    throw Error("Tokenizer: {}: {}: SentencePiece reports: {}", operation, path(), error);
  }

  SentencePieceModel* model_;
};

}  // namespace

std::shared_ptr<const TokenizerFile> open_sentencepiece(const std::string& path) {
  const std::vector<std::uint8_t> bytes = read_file(path);
  static const SentencePieceOpen kOpen = load_module(path);  // after a failure the next call tries again
  std::string error;
  SentencePieceModel* const model =
      bytes.empty()
          ? nullptr
          : kOpen(kSentencePieceVersion, reinterpret_cast<const char*>(bytes.data()), bytes.size(), sink(error));
  if (model == nullptr)
    throw FileError("{}: is not a model of SentencePiece: {}", path, bytes.empty() ? "the file is empty" : error);
  return std::make_shared<SentencePieceFile>(path, model);
}

}  // namespace lockstep::data
