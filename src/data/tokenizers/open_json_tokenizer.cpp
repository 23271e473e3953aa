// Reads a tokenizer.json.
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/data/files.h"
#include "src/core/process/file_kind.h"
#include "src/data/formats/json_depth.h"
#include "src/data/formats/utf8.h"
#include "src/data/token_models/byte_pair_model.h"
#include "src/data/token_models/unigram_model.h"
#include "src/data/token_models/word_piece_model.h"
#include "src/data/tokenizers/file_component.h"
#include "src/data/tokenizers/json_tokenizer.h"

namespace lockstep::data {

namespace {

nlohmann::json parsed_tokenizer(const std::string& path) {
  const std::vector<std::uint8_t> bytes = read_file(path);
  try {
    const std::string_view text = without_mark({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    check_json_depth(text, path);
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw FileError("{}: byte {}: is not JSON: is the file complete?{}", path, error.byte,
                    mistaken_download(std::as_bytes(std::span(bytes))));
  } catch (const nlohmann::json::exception& error) {
    throw FileError("{}: {}", path, error.what());
  }
}

// Files of 2020, such as GPT-2's, do not name the kind of model.
std::string kind_of_model(const FileComponent& model) {
  if (model.has("type")) return model.kind();
  if (model.part("vocab").value().is_array()) return "Unigram";
  return model.has("merges") ? "BPE" : model.has("max_input_chars_per_word") ? "WordPiece" : model.kind();
}

Vocabulary vocabulary_of(const FileComponent& model) {
  const FileComponent vocabulary = model.part("vocab");
  if (!vocabulary.value().is_object() || vocabulary.value().empty())
    model.refuse("'vocab' is missing or empty; expected an object from tokens to ids");
  Vocabulary tokens;
  for (const auto& [token, id] : vocabulary.value().items()) {
    if (!id.is_number_integer())
      vocabulary.refuse(fmt::format("the id of '{}' is {}, not an integer", token, id.dump()));
    tokens.add(token, id.get<std::int64_t>());
  }
  return tokens;
}

// "a b", or ["a", "b"]. The first line of a merges.txt may be among them.
std::vector<std::pair<std::string, std::string>> merges_of(const FileComponent& model) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const FileComponent& each : model.list("merges")) {
    const nlohmann::json& value = each.value();
    if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
      merges.emplace_back(value[0].get<std::string>(), value[1].get<std::string>());
      continue;
    }
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    if (text.starts_with("#version")) continue;
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      each.refuse(fmt::format("is {}; expected two tokens with a space between", value.dump()));
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

std::unique_ptr<TokenModel> byte_pair_model(const FileComponent& model, bool byte_level) {
  if (model.has("dropout") && model.value().at("dropout") != 0)
    model.refuse("'dropout' is not supported: it draws ids at random; set it to null");
  return std::make_unique<BytePairModel>(
      vocabulary_of(model), BytePairOptions{.merges = merges_of(model),
                                            .unknown = model.text("unk_token", ""),
                                            .fuse_unknown = model.flag("fuse_unk", false),
                                            .byte_fallback = model.flag("byte_fallback", false),
                                            .ignore_merges = model.flag("ignore_merges", false),
                                            .continuing_prefix = model.text("continuing_subword_prefix", ""),
                                            .end_suffix = model.text("end_of_word_suffix", ""),
                                            .byte_level = byte_level});
}

// A list of tokens with their scores, in the order of their ids.
std::unique_ptr<TokenModel> unigram_model(const FileComponent& model) {
  const FileComponent vocabulary = model.part("vocab");
  if (!vocabulary.value().is_array() || vocabulary.value().empty())
    model.refuse("'vocab' is missing or empty; expected a list of tokens with their scores");
  Vocabulary tokens;
  UnigramOptions options{.byte_fallback = model.flag("byte_fallback", false)};
  for (const nlohmann::json& each : vocabulary.value()) {
    if (!each.is_array() || each.size() != 2 || !each[0].is_string() || !each[1].is_number())
      vocabulary.refuse(fmt::format("the entry {} is {}; expected a token and its score", tokens.size(), each.dump()));
    tokens.add(each[0].get_ref<const std::string&>(), tokens.size());
    options.scores.push_back(each[1].get<double>());
  }
  if (model.has("unk_id")) options.unknown = model.integer("unk_id");
  return std::make_unique<UnigramModel>(std::move(tokens), options);
}

std::unique_ptr<TokenModel> model_of(const FileComponent& model, PreTokenizers& pre_tokenizers) {
  const std::string kind = kind_of_model(model);
  if (kind == "BPE") return byte_pair_model(model, pre_tokenizers.ends_in_byte_level);
  if (kind != "WordPiece" && kind != "Unigram") model.refuse_kind("BPE, Unigram, WordPiece");
  if (pre_tokenizers.ends_in_byte_level)
    model.refuse(fmt::format("{} behind a ByteLevel pre-tokenizer is not supported", kind));
  if (kind == "Unigram") return unigram_model(model);
  const WordPieceOptions defaults;
  return std::make_unique<WordPieceModel>(
      vocabulary_of(model),
      WordPieceOptions{.unknown = model.text("unk_token", defaults.unknown),
                       .continuing_prefix = model.text("continuing_subword_prefix", defaults.continuing_prefix),
                       .longest_word = model.integer("max_input_chars_per_word", defaults.longest_word)});
}

std::vector<AddedToken> added_tokens_of(const FileComponent& file) {
  std::vector<AddedToken> tokens;
  if (!file.has("added_tokens")) return tokens;
  for (const FileComponent& each : file.list("added_tokens")) {
    const std::int64_t id = each.integer("id");
    if (id < 0 || id > Vocabulary::kHighestId)
      each.refuse(fmt::format("'id' is {}; expected 0 to {}", id, Vocabulary::kHighestId));
    const bool is_special = each.flag("special", false);
    tokens.push_back({.content = each.text("content"),
                      .id = id,
                      .is_special = is_special,
                      .is_normalized = each.flag("normalized", !is_special),
                      .is_single_word = each.flag("single_word", false),
                      .strips_left = each.flag("lstrip", false),
                      .strips_right = each.flag("rstrip", false)});
  }
  return tokens;
}

TokenizerSteps steps_of(const FileComponent& file) {
  TokenizerSteps steps{.normalizers = normalizers_of(file.part("normalizer")),
                       .pre_tokenizers = pre_tokenizers_of(file.part("pre_tokenizer")),
                       .added = added_tokens_of(file),
                       .post_processor = post_processor_of(file.part("post_processor"))};
  const FileComponent model = file.part("model"), decoder = file.part("decoder");
  if (!model.value().is_object()) file.refuse("'model' is missing; expected a tokenizer.json as `tokenizers` saves it");
  try {
    steps.model = model_of(model, steps.pre_tokenizers);
  } catch (const InvalidArgument& error) {
    model.refuse(error.what());
  }
  if (!decoder.is_null()) steps.decoders = decoders_of(decoder);
  return steps;
}

}  // namespace

std::shared_ptr<const TokenizerFile> open_json_tokenizer(const std::string& path) {
  const nlohmann::json json = parsed_tokenizer(path);
  const FileComponent file(json, path, "");
  TokenizerSteps steps = steps_of(file);
  try {
    return std::make_shared<JsonTokenizer>(path, std::move(steps));
  } catch (const InvalidArgument& error) {
    file.part("added_tokens").refuse(error.what());
  }
}

}  // namespace lockstep::data
