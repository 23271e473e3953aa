#include "examples/lib/articles.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "lockstep/lockstep.h"

namespace lockstep::examples {
namespace {

void check_numbers(const char* what, const Tensor& numbers, std::size_t count, const char* of) {
  for (const std::int64_t number : numbers.span<std::int64_t>())
    if (number < 0 || static_cast<std::size_t>(number) >= count)
      throw InvalidArgument("{} {} is out of range: expected 0..{}, {}", what, number, count - 1, of);
}

// The words of all numbers that occur in Keras' articles: "#1000" for one that the index does not have.
std::vector<std::string> words_of(const std::string& folder, const data::ReutersSplit& keras) {
  const std::int64_t first = data::ReutersOptions().index_from;
  std::int64_t largest = first;
  for (const data::ReutersDataset* const set : {&keras.train, &keras.test})
    for (std::int64_t i = 0; i < set->size(); ++i)
      for (const std::int64_t word : set->get(i, 0)[0].span<std::int64_t>()) largest = std::max(largest, word);
  std::vector<std::string> words = {"<pad>", "<start>", "<unknown>"};
  for (std::int64_t word = first; word <= largest; ++word) words.push_back(fmt::format("#{}", word));
  const std::string index = folder + "/reuters_word_index.json";
  if (!std::filesystem::exists(index)) return words;
  for (const auto& [word, number] : data::reuters_word_index(index))
    if (number >= 0 && number + first <= largest) words[static_cast<std::size_t>(number + first)] = word;
  return words;
}

std::string vocabulary_path(const std::string& checkpoint) { return checkpoint + "/vocabulary.txt"; }

std::string vocabulary_text(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += word + "\n";
  return fmt::format("{} words, SHA-256 {}", words.size(), crypto::hex(crypto::sha256(std::as_bytes(std::span(all)))));
}

}  // namespace

Articles::Articles(const std::string& folder)
    : Articles(folder, std::filesystem::exists(folder + "/" + kKerasReuters)
                           ? std::optional(data::load_reuters(folder + "/" + kKerasReuters))
                           : std::nullopt) {}

Articles::Articles(const std::string& folder, const std::optional<data::ReutersSplit>& keras)
    : words(keras ? words_of(folder, *keras) : data::read_lines(folder + "/reuters_vocab.txt")),
      topics(keras ? data::reuters_label_names() : data::read_lines(folder + "/reuters_topics.txt")),
      known(keras ? data::KeptDataset(keras->train) : data::KeptDataset(lines(folder + "/reuters_train.jsonl.gz"))),
      test(keras ? data::KeptDataset(keras->test) : data::KeptDataset(lines(folder + "/reuters_test.jsonl.gz"))) {}

data::JsonLines Articles::lines(const std::string& path) const {
  return {path, [this](const nlohmann::json& record) {
            const Tensor tokens = data::int64_tensor(record.at("tokens")),
                         label = data::int64_tensor(record.at("label"));
            check_numbers("token", tokens, words.size(), "the words of reuters_vocab.txt");
            check_numbers("label", label, topics.size(), "the lines of reuters_topics.txt");
            return data::Sample{tokens, label};
          }};
}

std::unique_ptr<const Articles> read_articles(const std::string& folder, ProcessGroup& group) {
  return on_all_ranks(group, [&] { return std::make_unique<const Articles>(folder); });
}

void check_vocabulary(const std::string& checkpoint, const Articles& articles, ProcessGroup& group) {
  if (checkpoint.empty()) return;
  on_all_ranks(group, [&] {
    const std::string path = vocabulary_path(checkpoint), own = vocabulary_text(articles.words);
    if (group.rank() != 0 || !std::filesystem::exists(path)) return;
    const auto saved = data::read_lines(path);
    if (saved.size() != 1 || saved[0] != own)
      throw FileError(
          "--checkpoint {}: was trained with another vocabulary ({}) than reuters_vocab.txt ({}), so its numbers stand "
          "for other words: use that run's vocabulary, or another folder",
          checkpoint, saved.empty() ? "none" : saved[0], own);
  });
}

void keep_vocabulary(const std::string& checkpoint, const Articles& articles, const ProcessGroup& group) {
  if (checkpoint.empty()) return;
  train::prepare_checkpoint_folder(checkpoint);
  if (group.rank() != 0) return;
  std::ofstream file(vocabulary_path(checkpoint));
  if (!(file << vocabulary_text(articles.words) << "\n" << std::flush))
    throw FileError("--checkpoint {}: vocabulary.txt cannot be written", checkpoint);
}

}  // namespace lockstep::examples
