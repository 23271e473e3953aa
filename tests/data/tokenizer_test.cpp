// Tokenizers that the test writes itself: each kind of step, bad files, and several threads.
#include "lockstep/data/tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "src/data/token_models/byte_letters.h"
#include "src/data/unicode/text_pattern.h"
#include "src/data/unicode/unicode_text.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/heap_count.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

// Letters of all bytes, then "he", "ll", "hell", "o" with a space before, and <|end|>.
json byte_level_file() {
  json vocabulary, merges = {"h e", "l l", "he ll", "\u0120 o"};
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_byte_letters(std::string(1, static_cast<char>(byte)), letter);
    vocabulary[letter] = byte;
  }
  for (const char* const token : {"he", "ll", "hell", "\u0120o"}) vocabulary[token] = vocabulary.size();
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {{{"id", 260}, {"content", "<|end|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

json bert_file() {
  json vocabulary;
  for (const char* const token : {"[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "to", "!", "##o"})
    vocabulary[token] = vocabulary.size();
  return {{"added_tokens", {{{"id", 1}, {"content", "[CLS]"}, {"special", true}}}},
          {"normalizer", {{"type", "BertNormalizer"}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", {{"type", "BertProcessing"}, {"sep", {"[SEP]", 2}}, {"cls", {"[CLS]", 1}}}},
          {"decoder", {{"type", "WordPiece"}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 12},
            {"vocab", vocabulary}}}};
}

Tokenizer made(const json& file) { return Tokenizer(TestFile(file.dump(), "tokenizer.json").path()); }

std::string refusal(const json& file) {
  const TestFile written(file.dump(), "tokenizer.json");
  const std::string message = message_of([&] { Tokenizer{written.path()}; });
  EXPECT_THAT(message, ::testing::StartsWith(written.path() + ": "));
  return message;
}

TEST(Tokenizer, EncodesBytePairsOfBytes) {
  const Tokenizer tokenizer = made(byte_level_file());
  EXPECT_EQ(tokenizer.encode("hello o"), (Ids{258, 'o', 259}));
  EXPECT_EQ(tokenizer.encode("h\u00e9<|end|>l"), (Ids{'h', 0xc3, 0xa9, 260, 'l'}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.decode(Ids{258, 'o', 259, 260, 0xc3, 0xa9}), "hello o\u00e9");
  EXPECT_EQ(tokenizer.decode(Ids{260, 'x'}, {.skip_special_tokens = false}), "<|end|>x");
  EXPECT_EQ(tokenizer.decode(Ids{0xc3, 'x', 0xe6, 0x9d}), "\ufffdx\ufffd") << "cut in the middle of a character";
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = made(byte_level_file());
  EXPECT_EQ(tokenizer.vocabulary_size(), 261);
  EXPECT_EQ(tokenizer.id_of("hell"), 258);
  EXPECT_EQ(tokenizer.id_of("\u0120o"), 259);
  EXPECT_EQ(tokenizer.id_of("hello"), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(260), "<|end|>");
  ASSERT_EQ(tokenizer.special_tokens().size(), 1U);
  EXPECT_EQ(tokenizer.special_tokens()[0].id, 260);
}

TEST(Tokenizer, EncodesWordPiecesAndPairs) {
  const Tokenizer tokenizer = made(bert_file());
  EXPECT_EQ(tokenizer.encode("UNAFFABLE t\u00f6!"), (Ids{1, 3, 4, 5, 6, 7, 2}));
  EXPECT_EQ(tokenizer.encode("unto unable tooo", {.add_special_tokens = false}), (Ids{0, 3, 5, 6, 8, 8}));
  EXPECT_EQ(tokenizer.encode("tooooooooooo toooooooooooo", {.add_special_tokens = false}).back(), 0) << "13 characters";
  const PairEncoding pair = tokenizer.encode_pair("to", "!");
  EXPECT_EQ(pair.ids, (Ids{1, 6, 2, 7, 2}));
  EXPECT_EQ(pair.type_ids, (Ids{0, 0, 0, 1, 1}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 3, 4, 5, 6, 7, 2}), "unaffable to! [SEP]") << "[SEP] is no added token here";
}

TEST(Tokenizer, TakesAFolder) {
  const std::string folder = testing::temporary("tokenizer");
  std::filesystem::create_directory(folder);
  EXPECT_THAT(message_of([&] { Tokenizer{folder}; }), HasSubstr(folder + ": the folder has no tokenizer.json"));
  std::ofstream(folder + "/tokenizer.json") << bert_file();
  EXPECT_EQ(Tokenizer(folder).path(), folder + "/tokenizer.json");
  std::filesystem::remove_all(folder);
  EXPECT_THAT(message_of([&] { Tokenizer{folder + "/vocab.txt"}; }), HasSubstr("the name ends in '.txt'"));
}

TEST(Tokenizer, ReadsFilesOfOlderVersions) {
  json file = byte_level_file();
  file["model"].erase("type");
  file["model"]["merges"] = {"#version: 0.2", "h e", "l l", "he ll", "\u0120 o"};
  EXPECT_EQ(made(file).encode("hell o"), (Ids{258, 259}));
  file["model"]["merges"] = json::array({json::array({"h", "e"})});
  EXPECT_EQ(made(file).encode("hell"), (Ids{256, 'l', 'l'}));
  json bert = bert_file();
  bert["model"].erase("type");
  EXPECT_EQ(made(bert).encode("to"), (Ids{1, 6, 2}));
}

// -- mistakes

TEST(TokenizerMistakes, TextsAndIds) {
  const Tokenizer tokenizer = made(byte_level_file());
  EXPECT_THAT(message_of([&] { (void)tokenizer.encode("ab\xff"); }),
              HasSubstr("byte 2 of the text, 0xff, is not UTF-8"));
  EXPECT_THAT(message_of([&] { (void)tokenizer.encode_pair("a", "\xc3"); }), HasSubstr("byte 0 of the text, 0xc3"));
  EXPECT_THAT(message_of([&] {
                (void)tokenizer.decode(Ids{1, 261});
              }),
              HasSubstr("id 261 at place 1 is not in the vocabulary of"));
  EXPECT_THAT(message_of([&] { (void)tokenizer.decode(Ids{-1}); }), HasSubstr("which has ids 0 to 260"));
  EXPECT_THAT(message_of([&] { (void)tokenizer.token_of(300); }), HasSubstr("id 300 is not in the vocabulary"));
  EXPECT_THAT(message_of([&] { (void)tokenizer.encode("a", {.begin = true}); }),
              HasSubstr("are for SentencePiece files"));
}

TEST(TokenizerMistakes, KindsThatAreNotSupported) {
  const auto with = [](const char* key, const json& value) {
    json file = byte_level_file();
    file[key] = value;
    return refusal(file);
  };
  EXPECT_THAT(with("model", {{"type", "WordLevel"}}),
              HasSubstr("model: kind 'WordLevel' is not supported; supported are BPE, Unigram, WordPiece"));
  EXPECT_THAT(with("normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "ByteLevel"}}}}}),
              HasSubstr("normalizer.normalizers[1]: kind 'ByteLevel' is not supported; supported are BertNormalizer"));
  EXPECT_THAT(with("pre_tokenizer", {{"type", "UnicodeScripts"}}), HasSubstr("pre_tokenizer: kind 'UnicodeScripts'"));
  EXPECT_THAT(with("decoder", {{"type", "CTC"}}), HasSubstr("decoder: kind 'CTC'"));
  EXPECT_THAT(with("post_processor", {{"type", "Other"}}), HasSubstr("post_processor: kind 'Other'"));
  EXPECT_THAT(with("pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "[a[b]]"}}}, {"behavior", "Isolated"}}),
              HasSubstr("pre_tokenizer.pattern: the regular expression '[a[b]]' has a class within a class at byte 2"));
  EXPECT_THAT(with("pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}}),
              HasSubstr("cannot be compiled"));
  EXPECT_THAT(with("pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Odd"}}),
              HasSubstr("'behavior' is 'Odd', expected one of Removed, Isolated"));
}

TEST(TokenizerMistakes, DamagedFiles) {
  const TestFile text("{\"model\": ", "tokenizer.json");
  EXPECT_THAT(message_of([&] { Tokenizer{text.path()}; }), HasSubstr(text.path() + ": byte 11: is not JSON"));
  json file = byte_level_file();
  file.erase("model");
  EXPECT_THAT(refusal(file), HasSubstr("'model' is missing"));
  file = byte_level_file();
  file["model"].erase("vocab");
  EXPECT_THAT(refusal(file), HasSubstr("model: 'vocab' is missing or empty"));
  file = byte_level_file();
  file["model"]["merges"].push_back("he xx");
  EXPECT_THAT(refusal(file),
              HasSubstr("model: merge 4, 'he' with 'xx', needs the token 'xx', which is not in the vocab"));
  file["model"]["merges"].back() = "one two three";
  EXPECT_THAT(refusal(file), HasSubstr("model.merges[4]: is \"one two three\"; expected two tokens"));
  file = byte_level_file();
  file["model"]["dropout"] = 0.1;
  EXPECT_THAT(refusal(file), HasSubstr("'dropout' is not supported"));
  file = byte_level_file();
  file["model"]["vocab"]["twice"] = 7;
  EXPECT_THAT(refusal(file), HasSubstr("have the same id 7"));
  file = byte_level_file();
  file["model"]["unk_token"] = "<unk>";
  EXPECT_THAT(refusal(file), HasSubstr("the unknown token '<unk>' is not in the vocabulary"));
  file = byte_level_file();
  file["added_tokens"][0]["id"] = 5;
  EXPECT_THAT(refusal(file), HasSubstr("added_tokens: token '<|end|>' has the id 5, which is that of"));
  file["added_tokens"][0]["id"] = 1 << 30;
  EXPECT_THAT(refusal(file), HasSubstr("added_tokens[0]: 'id' is 1073741824; expected 0 to 16777215"));
  file = bert_file();
  file["post_processor"]["sep"] = {"[SEP]", 99};
  EXPECT_THAT(refusal(file), HasSubstr("the post-processor has the id 99, which no token has"));
  file = bert_file();
  file["normalizer"]["lowercase"] = "yes";
  EXPECT_THAT(refusal(file), HasSubstr("normalizer: 'lowercase' is a JSON string; expected true or false"));
}

TEST(TokenizerMistakes, EveryDamagedByteIsReadOrRefused) {
  json file = bert_file();
  EXPECT_GT(refused_when_damaged(file.dump(),
                                 [](const std::string& path) {
                                   std::filesystem::copy_file(path, path + ".json",
                                                              std::filesystem::copy_options::overwrite_existing);
                                   const std::string copy = path + ".json";
                                   try {
                                     (void)Tokenizer(copy).encode("unaffable [CLS] to!");
                                   } catch (const FileError& error) {
                                     EXPECT_THAT(error.what(), ::testing::StartsWith(copy));
                                     std::filesystem::remove(copy);
                                     throw FileError("{}: refused", path);
                                   }
                                   std::filesystem::remove(copy);
                                 }),
            500);
}

// -- threads and memory

std::string many_words() {
  std::string text;
  for (int i = 0; i < 5'000; ++i) text += fmt::format(" hell{}o w\u00f6rd {}", i % 777, i * 7919);
  return text;
}

TEST(Tokenizer, GivesSeveralThreadsTheSameIds) {
  const Tokenizer tokenizer = made(byte_level_file()), bert = made(bert_file());
  const std::string text = many_words();
  const Ids alone = tokenizer.encode(text), of_bert = bert.encode(text);
  std::vector<int> equal(4);
  std::vector<std::thread> threads;
  for (int& each : equal)
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) each += tokenizer.encode(text) == alone && bert.encode(text) == of_bert ? 1 : 0;
      each += tokenizer.decode(alone) == text ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ElementsAre(4, 4, 4, 4));
}

TEST(Tokenizer, AllocatesNothingWhenWarm) {
  const Tokenizer tokenizer = made(byte_level_file()), bert = made(bert_file());
  const std::string text = many_words(), accents = "na\u00efve unaffable t\u00f6 to!";
  Ids ids;
  const auto encode = [&] {
    ids.clear();
    tokenizer.encode_to(text, ids);
    bert.encode_to(accents, ids);
  };
  encode();
  encode();
  const std::size_t before = test_support::heap_allocations_by_thread();
  encode();
  EXPECT_EQ(test_support::heap_allocations_by_thread() - before, 0U);
}

// The heap for long words and the search for short ones merge in the same order.
TEST(Tokenizer, MergesLongWordsAsShortOnes) {
  json file = byte_level_file();
  file["pre_tokenizer"]["use_regex"] = false;
  const Tokenizer tokenizer = made(file);
  const Ids five = tokenizer.encode("hellohelllhehe");
  Ids many;
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += "hellohelllhehe";
    many.insert(many.end(), five.begin(), five.end());
  }
  EXPECT_EQ(tokenizer.encode(text), many);
}

// -- parts

TEST(TextPattern, TranslatesWhatDiffersInPcre2) {
  EXPECT_EQ(pcre2_expression(R"(\s)"), R"([\x09-\x0d\x20\x{85}\p{Z}])");
  EXPECT_EQ(pcre2_expression(R"([\s,])"), R"([\x09-\x0d\x20\x{85}\p{Z},])");
  EXPECT_EQ(pcre2_expression(R"([^]\]x]\h(?i:a)(?m-i:\u00e9))"), R"([^]\]x][0-9a-fA-F](?i:a)(?s-i:\x{00e9}))");
  EXPECT_EQ(pcre2_expression(R"(\v[\v[:digit:]])"), R"(\x0b[\x0b\p{Nd}])");
  EXPECT_THAT(message_of([] { (void)pcre2_expression("[a&&b]"); }), HasSubstr("an intersection of classes at byte 2"));
  EXPECT_THAT(message_of([] { (void)pcre2_expression(R"([\W])"); }), HasSubstr("a negated class within a class"));
}

TEST(TextPattern, AnIntervalIsRepeatedByAPlus) {
  EXPECT_EQ(pcre2_expression(R"(\p{N}{1,3}+)"), R"((?:\p{N}{1,3})+)");
  EXPECT_EQ(pcre2_expression(R"(x\x41{2}+\u00e9{2,}+)"), R"(x(?:\x41{2})+(?:\x{00e9}{2,})+)");
  EXPECT_EQ(pcre2_expression("x\u00e9{2}+"), "x(?:\u00e9{2})+");
  EXPECT_EQ(pcre2_expression("a(?<n>b[c)]){2}?"), "a(?:(?<n>b[c)]){2})?");
  EXPECT_EQ(pcre2_expression(R"(\d{,3}a{1,3}?a++a{,}\{{2})"), R"(\d{0,3}a{1,3}?a++a{,}\{{2})");
  EXPECT_EQ(pcre2_expression("(?#a(b)c{1,3}"), "(?#a(b)c{1,3}");
}

TEST(TextPattern, RefusesWhatHasAnotherMeaningInPcre2) {
  const auto refusal = [](const char* expression) { return message_of([&] { (void)pcre2_expression(expression); }); };
  for (const char* const each : {"(?i)b|c", "((?i)(?m)b|c)d", "x|(?i)b|c", "(?<n>(?i)b)", "a(?i:b|c)d"})
    EXPECT_EQ(refusal(each), "nothing was thrown") << each;
  EXPECT_THAT(refusal("a(?i)b|c"), HasSubstr("options without a colon behind the start of a group at byte 4"));
  EXPECT_THAT(refusal(R"(\Qa+\E)"), HasSubstr(R"(has \Q at byte 0)"));
  EXPECT_THAT(refusal(R"(a\E)"), HasSubstr(R"(has \E at byte 1)"));
  EXPECT_THAT(refusal("(*UTF)a"), HasSubstr("a callout at byte 0"));
  EXPECT_THAT(refusal("(?x)a {1,2}+"), HasSubstr("a repeated interval and the option x"));
  for (const char* const name : {"alpha", "alnum", "upper", "lower", "punct", "graph", "print", "^space"})
    EXPECT_THAT(refusal(fmt::format("[[:{}:]]", name).c_str()), HasSubstr(fmt::format("[:{}:] at byte 1", name)));
}

TEST(TextPattern, MatchesAreFoundInOrder) {
  PatternScratch scratch;
  const auto found = [&](const TextPattern& pattern, std::string_view text) {
    std::string all;
    pattern.visit_matches(text, scratch, [&](Span match) { all += fmt::format("{}-{} ", match.begin, match.end); });
    return all;
  };
  EXPECT_EQ(found(TextPattern::regex("a*"), "baac"), "0-0 1-3 4-4 ");
  EXPECT_EQ(found(TextPattern::regex("x*"), "\u00e9"), "0-0 2-2 ");
  EXPECT_EQ(found(TextPattern::string("aa"), "aaaab"), "0-2 2-4 ");
  EXPECT_EQ(found(TextPattern::string(""), "ab"), "");
}

TEST(UnicodeText, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(with_replacement_characters("a\xf0\x9f\x98z\xff\xc3"), "a\ufffdz\ufffd\ufffd");
  EXPECT_EQ(with_replacement_characters("\xed\xa0\x80"), "\ufffd\ufffd\ufffd") << "a surrogate";
  EXPECT_EQ(with_replacement_characters("\xf4\x90\x80\x80"), "\ufffd\ufffd\ufffd\ufffd") << "above U+10FFFF";
}

}  // namespace
}  // namespace lockstep::data
