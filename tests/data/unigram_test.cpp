// Unigram models of tokenizer.json, and the maps of characters that come with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/tokenizer.h"
#include "src/data/formats/base64.h"
#include "src/data/token_models/byte_trie.h"
#include "src/data/unicode/character_map.h"
#include "src/data/unicode/unicode_text.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/heap_count.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

// Braces alone would make an object of pairs.
json vocab_of(const std::vector<std::pair<std::string, json>>& tokens) {
  json list = json::array();
  for (const auto& [token, score] : tokens) list.push_back(json::array({token, score}));
  return list;
}

// 0 <unk>, 1 a, 2 b, 3 ab, 4 ba, 5 aba, 6 U+2581.
json unigram_file() {
  return {
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "never"}}},
      {"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "never"}}},
      {"model",
       {{"type", "Unigram"},
        {"unk_id", 0},
        {"vocab",
         vocab_of({{"<unk>", 0}, {"a", -2}, {"b", -2}, {"ab", -3}, {"ba", -3.5}, {"aba", -6}, {"\u2581", -2.5}})}}}};
}

Tokenizer opened(const json& file) { return Tokenizer(TestFile(file.dump(), "tokenizer.json").path()); }

std::string unigram_refusal(const json& file) {
  const TestFile written(file.dump(), "tokenizer.json");
  const std::string message = message_of([&] { Tokenizer{written.path()}; });
  EXPECT_THAT(message, ::testing::StartsWith(written.path() + ": "));
  return message;
}

// The double array of the rules: each key's beginnings have 256 units of their own.
std::string character_map(const std::map<std::string, std::string>& rules) {
  std::map<std::string, std::size_t> blocks = {{"", 0}};
  for (const auto& [key, text] : rules)
    for (std::size_t size = 1; size <= key.size(); ++size) blocks.try_emplace(key.substr(0, size), blocks.size());
  std::vector<std::uint32_t> units(blocks.size() * 256);
  std::string texts;
  for (const auto& [key, block] : blocks) {
    if (key.empty()) continue;
    const std::size_t byte = static_cast<unsigned char>(key.back());
    const std::size_t place = blocks.at(key.substr(0, key.size() - 1)) * 256 + byte;
    units[place] = static_cast<std::uint32_t>(byte | ((place ^ (block * 256)) << 10));
    const auto rule = rules.find(key);
    if (rule == rules.end()) continue;
    units[place] |= 1U << 8;
    units[block * 256] = (1U << 31) | static_cast<std::uint32_t>(texts.size());
    texts += rule->second + '\0';
  }
  const auto bytes = static_cast<std::uint32_t>(units.size() * sizeof units[0]);
  std::string file(sizeof bytes + bytes, '\0');
  std::memcpy(file.data(), &bytes, sizeof bytes);
  std::memcpy(file.data() + sizeof bytes, units.data(), bytes);
  return file + texts;
}

std::string mapped(const CharacterMap& map, const std::string& text) {
  std::string result = "before";
  map.apply(text, result);
  return result;
}

TEST(Unigram, TakesTheBestSumOfScores) {
  const Tokenizer tokenizer = opened(unigram_file());
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{3}));
  EXPECT_EQ(tokenizer.encode("aba"), (Ids{3, 1})) << "-5, not -6 or a, ba: -5.5";
  EXPECT_EQ(tokenizer.encode("ba b"), (Ids{4, 6, 2}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.decode(Ids{3, 6, 2}), "ab b");
}

TEST(Unigram, OfEqualSumsTheTokenThatBeginsFirstCounts) {
  json file = unigram_file();
  file["model"]["vocab"][3][1] = -4;
  file["model"]["vocab"][5][1] = -6;
  EXPECT_EQ(opened(file).encode("ab"), (Ids{3})) << "ab: -4, a and b: -4";
  file["model"]["vocab"][4][1] = -4;
  EXPECT_EQ(opened(file).encode("aba"), (Ids{5}));
}

TEST(Unigram, JoinsUnknownCharacters) {
  json file = unigram_file();
  const Tokenizer tokenizer = opened(file);
  EXPECT_EQ(tokenizer.encode("xya\u00e9\u6771b"), (Ids{0, 1, 0, 2}));
  EXPECT_EQ(tokenizer.encode("x<unk>"), (Ids{0})) << "the unknown token's own text";
  file["model"]["byte_fallback"] = true;
  EXPECT_EQ(opened(file).encode("\u00e9"), (Ids{0})) << "no bytes in the vocabulary";
  for (const char* const byte : {"<0xC3>", "<0xA9>"}) file["model"]["vocab"].push_back(json::array({byte, 0}));
  const Tokenizer with_bytes = opened(file);
  EXPECT_EQ(with_bytes.encode("a\u00e9b"), (Ids{1, 7, 8, 2}));
  EXPECT_EQ(with_bytes.encode("x\u00e9"), (Ids{0})) << "the vocabulary does not have all bytes of the run";
}

TEST(Unigram, WithoutAnUnknownTokenTheCharacterIsNamed) {
  json file = unigram_file();
  file["model"]["unk_id"] = nullptr;
  const Tokenizer tokenizer = opened(file);
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{3}));
  EXPECT_THAT(message_of([&] { (void)tokenizer.encode("ab\u00e9"); }),
              HasSubstr("the text has '\u00e9', which no token has, and the file's model has no unk_id"));
}

TEST(Unigram, LongWordsAllocateNothingWhenWarm) {
  const Tokenizer tokenizer = opened(unigram_file());
  std::string text;
  for (int i = 0; i < 3'000; ++i) text += "abxyba";
  Ids ids;
  const auto encode = [&] {
    ids.clear();
    tokenizer.encode_to(text, ids);
  };
  encode();
  encode();
  EXPECT_EQ(ids.size(), 9'000U);
  const std::size_t before = test_support::heap_allocations_by_thread();
  encode();
  EXPECT_EQ(test_support::heap_allocations_by_thread() - before, 0U);
}

TEST(Unigram, FilesOfOlderVersionsDoNotNameTheModel) {
  json file = unigram_file();
  file["model"].erase("type");
  EXPECT_EQ(opened(file).encode("ab"), (Ids{3}));
}

TEST(Unigram, DamagedFilesAreRefused) {
  const auto with = [](const char* key, const json& value) {
    json file = unigram_file();
    file["model"][key] = value;
    return unigram_refusal(file);
  };
  EXPECT_THAT(with("vocab", json::array()), HasSubstr("model: 'vocab' is missing or empty; expected a list of tokens"));
  EXPECT_THAT(with("vocab", json::object({{"a", 1}})),
              HasSubstr("model: 'vocab' is missing or empty; expected a list of tokens"));
  EXPECT_THAT(with("vocab", vocab_of({{"a", -1}, {"b", "c"}})),
              HasSubstr("model.vocab: the entry 1 is [\"b\",\"c\"]; expected a token and its score"));
  EXPECT_THAT(with("vocab", vocab_of({{"a", -1}, {"a", -2}})), HasSubstr("model: token 'a' has two ids, 0 and 1"));
  EXPECT_THAT(with("unk_id", 7), HasSubstr("model: 'unk_id' is 7, but the vocab has 7 tokens"));
  EXPECT_THAT(with("unk_id", -1), HasSubstr("model: 'unk_id' is -1, but the vocab has 7 tokens"));
  json file = unigram_file();
  file["pre_tokenizer"] = {{"type", "ByteLevel"}};
  EXPECT_THAT(unigram_refusal(file), HasSubstr("model: Unigram behind a ByteLevel pre-tokenizer is not supported"));
  file = unigram_file();
  file["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "abc"}};
  EXPECT_THAT(unigram_refusal(file), HasSubstr("normalizer: 'precompiled_charsmap' is not base64"));
  file["normalizer"]["precompiled_charsmap"] = "";
  EXPECT_THAT(unigram_refusal(file), HasSubstr("normalizer: 'precompiled_charsmap': a map of characters of 0 bytes"));
}

TEST(Unigram, AMapOfCharactersIsReadFromTheFile) {
  json file = unigram_file();
  file["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AAQAAAAA"}};  // an array that is cut off
  EXPECT_THAT(unigram_refusal(file), HasSubstr("is damaged: its array has 1024"));
  file["normalizer"] = {{"type", "Nmt"}};
  EXPECT_EQ(opened(file).encode("a\u200bb\x01"), (Ids{1, 6, 2}));
}

TEST(CharacterMap, ReplacesCharactersAndShortClusters) {
  const CharacterMap map(character_map({{"\u00bd", "1/2"},
                                        {"e\u0301", "\u00e9"},
                                        {"\r", " "},
                                        {"a", "A"},
                                        {"x", ""},
                                        {"xy", "never"},
                                        {"\u0e33", "\u0e4d\u0e32"}}));
  EXPECT_EQ(mapped(map, ""), "");
  EXPECT_EQ(mapped(map, "b\u00bdc"), "b1/2c");
  EXPECT_EQ(mapped(map, "e\u0301e"), "\u00e9e") << "the rule of a cluster";
  EXPECT_EQ(mapped(map, "xyz"), "yz") << "a rule without a text; each letter is a cluster";
  EXPECT_EQ(mapped(map, "\r\n\r"), "  ") << "a line's end is one cluster";
  EXPECT_EQ(mapped(map, "a\u0301"), "A") << "the shortest rule is for all of the cluster";
  EXPECT_EQ(mapped(map, "a\u0301\u0301\u0301"), "A\u0301\u0301\u0301") << "7 bytes: by characters";
  EXPECT_EQ(mapped(map, "\u0e01\u0e33"), "\u0e01\u0e4d\u0e32");
  EXPECT_EQ(mapped(map, std::string("a\0a", 3)), std::string("A\0A", 3));
}

TEST(CharacterMap, DamagedOnesAreRefusedOrStayWithinThemselves) {
  const std::string whole = character_map({{"a", "b"}, {"\u00bd", "1/2"}});
  const auto is_refused = [](const std::string& file) {
    try {
      (void)mapped(CharacterMap(file), "ab\u00bd c");
      return false;
    } catch (const InvalidArgument&) {
      return true;
    }
  };
  EXPECT_FALSE(is_refused(whole));
  for (std::size_t size = 0; size < whole.size() - 6; size += 7) EXPECT_TRUE(is_refused(whole.substr(0, size))) << size;
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    refused += is_refused(damaged) ? 1 : 0;
  }
  EXPECT_GT(refused, 5);
}

TEST(GraphemeClusters, EndWhereAReaderSeesTheNextCharacter) {
  const auto sizes = [](const std::string& text) {
    std::vector<std::size_t> found;
    for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      end = grapheme_end(text, begin);
      found.push_back(end - begin);
    }
    return found;
  };
  EXPECT_THAT(sizes("ab\r\n\n"), ::testing::ElementsAre(1, 1, 2, 1));
  EXPECT_THAT(sizes("e\u0301e"), ::testing::ElementsAre(3, 1));
  EXPECT_THAT(sizes("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7"), ::testing::ElementsAre(8, 8)) << "flags";
  EXPECT_THAT(sizes("\u1112\u1161\u11ab\u0915"), ::testing::ElementsAre(9, 3)) << "a syllable of Hangul";
  EXPECT_THAT(sizes("\U0001f469\u200d\U0001f467a"), ::testing::ElementsAre(11, 1));
}

TEST(Base64, IsDecoded) {
  EXPECT_EQ(base64_decoded(""), "");
  EXPECT_EQ(base64_decoded("Zm9vYg=="), "foob");
  EXPECT_EQ(base64_decoded("Zm9vYmE="), "fooba");
  EXPECT_EQ(base64_decoded("+/+/"), "\xfb\xff\xbf");
  for (const char* const wrong : {"Zm9", "Zm9=Zm9v", "Zm 9", "===="}) EXPECT_EQ(base64_decoded(wrong), std::nullopt);
}

TEST(ByteTrie, VisitsThePrefixesOfAText) {
  const ByteTrie trie({{"a", 0}, {"abc", 1}, {"b", 2}, {"\xff", 3}, {"ab", 4}});
  const auto visited = [&](std::string_view text) {
    std::vector<std::pair<std::size_t, int>> all;
    trie.visit_prefixes(text, [&](std::size_t length, std::int32_t id) { all.emplace_back(length, id); });
    return all;
  };
  EXPECT_THAT(visited("abcd"), ::testing::ElementsAre(std::pair(1, 0), std::pair(2, 4), std::pair(3, 1)));
  EXPECT_THAT(visited("\xff"), ::testing::ElementsAre(std::pair(1, 3)));
  EXPECT_THAT(visited("c"), ::testing::IsEmpty());
  EXPECT_THAT(visited(""), ::testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep::data
