// The code of docs/data.md about tokenizers.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/lockstep.h"
#include "tests/data/files_for_tests.h"

namespace ls = lockstep;

namespace {

TEST(TokenizerDocExamples, FromTextsToWindows) {
  nlohmann::json vocabulary;
  for (const char* const token : {"[UNK]", "to", "be", "or", "not", "<|endoftext|>"})
    vocabulary[token] = vocabulary.size();
  const ls::data::TestFile tokenizer_file(
      nlohmann::json{{"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                     {"model", {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", vocabulary}}}}
          .dump(),
      "tokenizer.json");
  const ls::data::TestFile text_file("to be or not to be"), token_file("");
  const std::string model = tokenizer_file.path(), text = text_file.path(), tokens = token_file.path();
  const std::vector<std::string> articles = {"to be or not to", "be or not"};
  std::int64_t seen = 0;

  const ls::data::Tokenizer tokenizer(model);  // tokenizer.json, a .model, or the folder with it
  std::vector<std::vector<std::int64_t>> documents;
  for (const std::string& article : articles) documents.push_back(tokenizer.encode(article));
  const std::int64_t end = tokenizer.id_of("<|endoftext|>").value();
  const auto packed = ls::data::pack_sequences(documents, {.length = 4, .separator = end});
  const auto windows = ls::data::tokenize_file(text, tokenizer, {.length = 4});

  ls::data::write_tokens(tokens, tokenizer.encode(articles[0]));  // uint16, as nanoGPT reads them
  const ls::data::TokenFiles stored({tokens}, {.length = 4, .vocabulary_size = tokenizer.vocabulary_size()});
  for (auto& [inputs, targets] : ls::data::Pipeline(stored).shuffle(1000).batch(2).epoch(0)) seen += targets.count();

  EXPECT_EQ(packed.tokens(), 10);
  EXPECT_EQ(packed.size(), 2);
  EXPECT_EQ(windows.size(), 1);
  EXPECT_EQ(seen, 4);
}

}  // namespace
