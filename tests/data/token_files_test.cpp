// Files of token ids, and windows over them and over packed documents.
#include "lockstep/data/token_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/tokenizer.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

Ids counted(std::int64_t count) {
  Ids ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Ids ids_of(const Dataset& set, std::int64_t index, std::size_t element) {
  const Sample sample = set.get(index, 0);
  const auto values = sample[element].span<std::int64_t>();
  return {values.begin(), values.end()};
}

template <typename Value> std::string bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

class TokenFormats : public ::testing::TestWithParam<std::tuple<TokenFormat, TokenType>> {};

TEST_P(TokenFormats, AreReadAsTheyWereWritten) {
  const auto [format, type] = GetParam();
  const TestFile file("");
  Ids ids = counted(50);
  ids[7] = type == TokenType::kUint16 ? 65'535 : 128'000;
  write_tokens(file.path(), ids, {.format = format, .type = type});
  const TokenFiles set({file.path()}, {.length = 8, .type = type});
  EXPECT_EQ(set.tokens(), 50);
  EXPECT_EQ(set.size(), 6);
  EXPECT_EQ(ids_of(set, 0, 0), Ids(ids.begin(), ids.begin() + 8));
  EXPECT_EQ(ids_of(set, 5, 0), Ids(ids.begin() + 40, ids.begin() + 48));
  EXPECT_EQ(ids_of(set, 5, 1), Ids(ids.begin() + 41, ids.begin() + 49));
  EXPECT_FALSE(std::filesystem::exists(file.path() + ".part"));
}

INSTANTIATE_TEST_SUITE_P(All, TokenFormats,
                         ::testing::Combine(::testing::Values(TokenFormat::kRaw, TokenFormat::kLlmC, TokenFormat::kNpy),
                                            ::testing::Values(TokenType::kUint16, TokenType::kUint32)));

TEST(TokenFiles, HaveWindowsOfEachFile) {
  const TestFile first(bytes_of<std::uint16_t>({0, 1, 2, 3, 4, 5})), second(bytes_of<std::uint16_t>({10, 11, 12, 13}));
  const TokenFiles set({first.path(), second.path()}, {.length = 3, .stride = 2});
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(set.tokens(), 10);
  EXPECT_EQ(ids_of(set, 1, 0), (Ids{2, 3, 4}));
  EXPECT_EQ(ids_of(set, 1, 1), (Ids{3, 4, 5}));
  EXPECT_EQ(ids_of(set, 2, 0), (Ids{10, 11, 12}));
  EXPECT_EQ(ids_of(set, 2, 1), (Ids{11, 12, 13}));
  std::int64_t seen = 0;
  const DistributedSampler sampler(set.size(), {}, {.seed = 1});
  for (const auto& [inputs, targets] : DataLoader(set, sampler, {.batch_size = 2, .num_workers = 2}))
    for (std::size_t i = 0; i < inputs.span<std::int64_t>().size(); ++i, ++seen)
      EXPECT_EQ(targets.span<std::int64_t>()[i], inputs.span<std::int64_t>()[i] + 1);
  EXPECT_EQ(seen, 9);
}

TEST(TokenFiles, ReadIntegersOfAnySizeFromNpy) {
  const auto npy = [](const std::string& type, const std::string& values) {
    std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (4,), }}", type);
    text.resize(117, ' ');
    return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + text + "\n" + values;
  };
  for (const auto& [type, values] :
       std::vector<std::pair<std::string, std::string>>{{"|u1", bytes_of<std::uint8_t>({1, 2, 3, 200})},
                                                        {"<i2", bytes_of<std::int16_t>({1, 2, 3, 200})},
                                                        {"<i4", bytes_of<std::int32_t>({1, 2, 3, 200})},
                                                        {"<i8", bytes_of<std::int64_t>({1, 2, 3, 200})}}) {
    const TestFile file(npy(type, values));
    EXPECT_EQ(ids_of(TokenFiles({file.path()}, {.length = 3}), 0, 1), (Ids{2, 3, 200})) << type;
  }
  const TestFile floats(npy("<f4", std::string(16, '\0'))), cut(npy("<i8", std::string(31, '\0')));
  EXPECT_THAT(message_of([&] { TokenFiles({floats.path()}); }), HasSubstr("has the type '<f4'; expected integers"));
  EXPECT_THAT(message_of([&] { TokenFiles({cut.path()}); }),
              HasSubstr("says 4 tokens of 8 bytes, but 31 bytes follow"));
  const TestFile negative(npy("|i1", bytes_of<std::int8_t>({1, -2, 3, 4})));
  const TokenFiles set({negative.path()}, {.length = 3});
  EXPECT_THAT(message_of([&] { (void)set.get(0, 0); }),
              HasSubstr(negative.path() + ": token 1 is -2; expected no neg"));
}

TEST(TokenFiles, RefuseWhatIsDamaged) {
  const TestFile odd("abc"), few("ab"), file(bytes_of<std::uint16_t>({0, 1, 2, 70, 4}));
  EXPECT_THAT(message_of([&] { TokenFiles({odd.path()}); }),
              HasSubstr(odd.path() + ": has 3 bytes, which are not a multiple of 2, the bytes of a uint16"));
  EXPECT_THAT(message_of([&] { TokenFiles({few.path()}, {.length = 4}); }),
              HasSubstr(few.path() + ": has 1 tokens, too few for a window of 4 and its next token"));
  const TokenFiles set({file.path()}, {.length = 2, .vocabulary_size = 70});
  EXPECT_EQ(ids_of(set, 0, 0), (Ids{0, 1}));
  EXPECT_THAT(message_of([&] { (void)set.get(1, 0); }), HasSubstr(file.path() + ": token 3 is 70; expected 0 to 69"));
  EXPECT_THAT(message_of([&] { (void)set.get(2, 0); }), HasSubstr("sample 2 does not exist; the set has 2"));
  EXPECT_THAT(message_of([&] { TokenFiles({}); }), HasSubstr("got no paths"));
  EXPECT_THAT(message_of([&] { TokenFiles({file.path()}, {.length = 0}); }), HasSubstr("length 0 must be positive"));
  EXPECT_THAT(message_of([&] { TokenFiles({file.path() + "x"}); }), HasSubstr(file.path() + "x: cannot be opened"));
  write_tokens(file.path(), counted(5), {.format = TokenFormat::kLlmC});
  std::filesystem::resize_file(file.path(), 1024 + 8);
  EXPECT_THAT(message_of([&] { TokenFiles({file.path()}, {.length = 2}); }),
              HasSubstr("its llm.c header says 5 tokens of 2 bytes, but 8 bytes follow"));
}

TEST(WriteTokens, RefusesIdsThatDoNotFit) {
  const TestFile file("before");
  EXPECT_THAT(message_of([&] {
                write_tokens(file.path(), Ids{1, 65'536});
              }),
              HasSubstr(file.path() + ": token 1 is 65536, which uint16 cannot hold: expected 0 to 65535"));
  EXPECT_THAT(message_of([&] { write_tokens(file.path(), Ids{-1}, {.type = TokenType::kUint32}); }),
              HasSubstr("is -1"));
  EXPECT_EQ(std::filesystem::file_size(file.path()), 6U) << "the file before is still there";
  EXPECT_FALSE(std::filesystem::exists(file.path() + ".part"));
  EXPECT_THAT(message_of([&] { write_tokens("/nowhere/tokens.bin", Ids{1}); }), HasSubstr("/nowhere/tokens.bin.part"));
}

TEST(PackSequences, PutsDocumentsBehindEachOther) {
  const std::vector<Ids> documents = {{1, 2, 3}, {}, {4, 5, 6, 7, 8}};
  const TokenSequences set = pack_sequences(documents, {.length = 3, .separator = 0});
  EXPECT_EQ(set.tokens(), 11);
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(ids_of(set, 0, 0), (Ids{1, 2, 3}));
  EXPECT_EQ(ids_of(set, 0, 1), (Ids{2, 3, 0}));
  EXPECT_EQ(ids_of(set, 1, 0), (Ids{0, 0, 4}));
  EXPECT_EQ(ids_of(set, 2, 1), (Ids{6, 7, 8}));
  EXPECT_THAT(message_of([&] { pack_sequences(documents, {.length = 3}); }), HasSubstr("separator is -1"));
  EXPECT_THAT(message_of([&] { pack_sequences(documents, {.length = 11, .separator = 0}); }),
              HasSubstr("got 11 tokens"));
  EXPECT_THAT(message_of([&] { pack_sequences(documents, {.length = 3, .separator = 8, .vocabulary_size = 8}); }),
              HasSubstr("token 3 is 8; expected 0 to 7"));
}

TEST(TokenizeFile, GivesWindowsOfAText) {
  nlohmann::json vocabulary;
  for (const char* const token : {"[UNK]", "to", "be", "or", "not"}) vocabulary[token] = vocabulary.size();
  const TestFile tokenizer_file(
      nlohmann::json{{"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                     {"model", {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", vocabulary}}}}
          .dump(),
      "tokenizer.json");
  const Tokenizer tokenizer(tokenizer_file.path());
  const TestFile text("to be or\nnot to be"), packed(gzip("to be or not to be")), bad("to be\n\xff or not");
  for (const TestFile* const file : {&text, &packed}) {
    const TokenSequences set = tokenize_file(file->path(), tokenizer, {.length = 2});
    EXPECT_EQ(set.size(), 2);
    EXPECT_EQ(ids_of(set, 1, 0), (Ids{3, 4}));
    EXPECT_EQ(ids_of(set, 1, 1), (Ids{4, 1}));
  }
  EXPECT_THAT(message_of([&] { tokenize_file(bad.path(), tokenizer); }),
              HasSubstr(bad.path() + ": byte 6 (line 2), 0xff"));
  EXPECT_THAT(message_of([&] { tokenize_file(text.path(), tokenizer); }),
              HasSubstr("has 6 tokens, too few for a window"));
}

}  // namespace
}  // namespace lockstep::data
