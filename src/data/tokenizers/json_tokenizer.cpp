#include "src/data/tokenizers/json_tokenizer.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::data {

class JsonTokenizer::Borrowed {
 public:
  explicit Borrowed(const JsonTokenizer& owner) : owner_(owner) {
    const std::lock_guard lock(owner_.mutex_);
    if (owner_.idle_.empty()) return;
    scratch_ = std::move(owner_.idle_.back());
    owner_.idle_.pop_back();
  }
  ~Borrowed() {
    if (!scratch_) return;
    const std::lock_guard lock(owner_.mutex_);
    if (owner_.idle_.size() < owner_.idle_.capacity()) owner_.idle_.push_back(std::move(scratch_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Scratch& get() {
    if (!scratch_) scratch_ = std::make_unique<Scratch>();
    return *scratch_;
  }

 private:
  const JsonTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

JsonTokenizer::JsonTokenizer(const std::string& path, TokenizerSteps steps)
    : TokenizerFile(path),
      steps_(std::move(steps)),
      added_(std::move(steps_.added), [this](const std::string& content) { return normalized_content(content); }),
      size_(steps_.model->vocabulary().size()) {
  constexpr std::size_t kMostIdle = 64;
  idle_.reserve(kMostIdle);
  for (const AddedToken& token : added_.all()) {
    const std::int32_t known = steps_.model->vocabulary().find(token.content);
    const std::string* const other = steps_.model->vocabulary().token(token.id);
    if (known >= 0 && known != token.id)
      throw InvalidArgument("token '{}' has the id {}, but {} in the model's vocabulary", token.content, token.id,
                            known);
    if (other != nullptr && *other != token.content)
      throw InvalidArgument("token '{}' has the id {}, which is that of '{}' in the model's vocabulary", token.content,
                            token.id, *other);
    size_ = std::max(size_, token.id + 1);
  }
  for (const auto* parts : {&steps_.post_processor.single, &steps_.post_processor.pair})
    for (const TemplatePart& part : *parts)
      for (const std::int64_t id : part.ids)
        if (!has_id(id)) throw InvalidArgument("the post-processor has the id {}, which no token has", id);
}

std::string JsonTokenizer::normalized_content(const std::string& content) const {
  NormalizerScratch scratch;
  PatternScratch patterns;
  return std::string(normalized(steps_.normalizers, content, scratch, patterns));
}

void JsonTokenizer::put_section(std::string_view text, bool begins_input, Scratch& scratch,
                                std::vector<std::int64_t>& ids) const {
  CutText& cut = scratch.cut;
  cut.start(text, begins_input);
  for (const auto& step : steps_.pre_tokenizers.steps) step->cut(cut, scratch.patterns);
  for (const Span piece : cut.pieces()) steps_.model->encode(piece.of(cut.text()), scratch.model, ids);
}

void JsonTokenizer::put_text(std::string_view text, Scratch& scratch, std::vector<std::int64_t>& ids) const {
  const auto put_token = [&](const AddedToken& token) { ids.push_back(token.id); };
  const auto put_unnormalized = [&](Span section) {
    const std::string_view changed =
        normalized(steps_.normalizers, section.of(text), scratch.normalizers, scratch.patterns);
    const auto put_normalized = [&](Span part) {
      put_section(part.of(changed), section.begin == 0 && part.begin == 0, scratch, ids);
    };
    added_.cut(changed, true, put_normalized, put_token);
  };
  added_.cut(text, false, put_unnormalized, put_token);
}

void JsonTokenizer::check(const EncodeOptions& options) const {
  if (options.begin || options.end)
    throw InvalidArgument(
        "Tokenizer: EncodeOptions::begin and end are for SentencePiece files; {} says by itself which tokens it adds",
        path());
}

void JsonTokenizer::encode(std::string_view text, const EncodeOptions& options, std::vector<std::int64_t>& ids) const {
  check(options);
  Borrowed scratch(*this);
  for (const TemplatePart& part : steps_.post_processor.single) {
    if (part.text >= 0)
      put_text(part.text == 0 ? text : "", scratch.get(), ids);
    else if (options.add_special_tokens)
      ids.insert(ids.end(), part.ids.begin(), part.ids.end());
  }
}

PairEncoding JsonTokenizer::encode_pair(std::string_view first, std::string_view second,
                                        const EncodeOptions& options) const {
  check(options);
  Borrowed scratch(*this);
  PairEncoding result;
  for (const TemplatePart& part : steps_.post_processor.pair) {
    if (part.text >= 0)
      put_text(part.text == 0 ? first : second, scratch.get(), result.ids);
    else if (options.add_special_tokens)
      result.ids.insert(result.ids.end(), part.ids.begin(), part.ids.end());
    result.type_ids.resize(result.ids.size(), part.type_id);
  }
  return result;
}

std::string JsonTokenizer::decode(std::span<const std::int64_t> ids, const DecodeOptions& options) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int64_t id : ids) {
    const AddedToken* const added = added_.of_id(id);
    if (added == nullptr)
      tokens.push_back(*steps_.model->vocabulary().token(id));
    else if (!options.skip_special_tokens || !added->is_special)
      tokens.push_back(added->decoded);
  }
  if (steps_.decoders)
    for (const auto& decoder : *steps_.decoders) decoder->decode(tokens);
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) (text += i > 0 && !steps_.decoders ? " " : "") += tokens[i];
  return text;
}

bool JsonTokenizer::has_id(std::int64_t id) const {
  return steps_.model->vocabulary().token(id) != nullptr || added_.of_id(id) != nullptr;
}

std::optional<std::int64_t> JsonTokenizer::id_of(std::string_view token) const {
  if (const AddedToken* const added = added_.of_content(token)) return added->id;
  const std::int32_t id = steps_.model->vocabulary().find(token);
  return id < 0 ? std::nullopt : std::optional<std::int64_t>(id);
}

std::optional<std::string> JsonTokenizer::token_of(std::int64_t id) const {
  if (const AddedToken* const added = added_.of_id(id)) return added->content;
  const std::string* const token = steps_.model->vocabulary().token(id);
  return token == nullptr ? std::nullopt : std::optional<std::string>(*token);
}

std::vector<SpecialToken> JsonTokenizer::special_tokens() const {
  std::vector<SpecialToken> special;
  for (const AddedToken& token : added_.all())
    if (token.is_special) special.push_back({token.content, token.id});
  std::sort(special.begin(), special.end(), [](const SpecialToken& a, const SpecialToken& b) { return a.id < b.id; });
  return special;
}

}  // namespace lockstep::data
