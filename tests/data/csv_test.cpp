// Tests of CSV files: fields, quotes, numbers, and errors that name file, line and column.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/data/csv.h"
#include "lockstep/data/loader.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::vector<std::string>> fields_of(std::string_view content, const CsvOptions& options = {}) {
  const TestFile file(content, "fields.csv");
  std::vector<std::vector<std::string>> all;
  const CsvFile read(
      file.path(),
      [&](const CsvRecord& record) {
        std::vector<std::string>& fields = all.emplace_back();
        for (std::size_t i = 0; i < record.size(); ++i) fields.emplace_back(record.text(i));
        return Sample{scalar(1.0f)};
      },
      options);
  return all;
}

TEST(Csv, SplitsQuotedFieldsAsRfc4180Says) {
  EXPECT_THAT(fields_of("a,b\r\nx,\"y, \"\"z\"\"\"\r\n,\"two\nlines\"\r\n"),
              ElementsAre(ElementsAre("x", "y, \"z\""), ElementsAre("", "two\nlines")));
  EXPECT_THAT(fields_of("\xef\xbb\xbf"
                        "a;b\n\n1;2",
                        {.separator = ';'}),
              ElementsAre(ElementsAre("1", "2")));
  EXPECT_THAT(fields_of("1\t2\n3\t\n", {.separator = '\t', .header = false}),
              ElementsAre(ElementsAre("1", "2"), ElementsAre("3", "")));
}

TEST(Csv, MakesSamplesByColumnNames) {
  const TestFile file(gzip("price,rooms,area\n10, 3 ,70.5\n-2,+4,1e2\n"), "houses.csv.gz");
  const CsvFile houses(file.path(), [](const CsvRecord& house) {
    return Sample{float32_row({house.number("rooms"), house.number("area")}), scalar(house.integer("price"))};
  });
  EXPECT_THAT(houses.columns(), ElementsAre("price", "rooms", "area"));
  ASSERT_EQ(houses.size(), 2);
  EXPECT_THAT(houses.get(0, 0)[0].span<float>(), ElementsAre(3, 70.5f));
  EXPECT_THAT(houses.get(1, 0)[0].span<float>(), ElementsAre(4, 100));
  EXPECT_EQ(houses.get(1, 0)[1].span<std::int64_t>()[0], -2);
  EXPECT_THAT(message_of([&] { houses.get(2, 0); }), HasSubstr("sample 2 does not exist; the set has 2"));
}

TEST(Csv, ReadsTablesOfNumbers) {
  const TestFile file("x,y\n1,2\n3,nan\n5,-inf\n", "table.csv");
  const auto [columns, values] = read_csv(file.path());
  EXPECT_THAT(columns, ElementsAre("x", "y"));
  EXPECT_EQ(values.shape(), Shape({3, 2}));
  EXPECT_EQ(values.span<float>()[2], 3);
  EXPECT_TRUE(std::isnan(values.span<float>()[3]));
  EXPECT_TRUE(std::isinf(values.span<float>()[5]));
  EXPECT_TRUE(read_csv(TestFile("1,2\n", "bare.csv").path(), {.header = false}).columns.empty());
}

TEST(Csv, AnEmptyLineOfOneColumnIsAnEmptyField) {
  EXPECT_THAT(fields_of("text\n\na\n\r\n\nb\n\n\n"),
              ElementsAre(ElementsAre(""), ElementsAre("a"), ElementsAre(""), ElementsAre(""), ElementsAre("b")));
  EXPECT_THAT(fields_of("\n\na\n\nb", {.header = false}),
              ElementsAre(ElementsAre("a"), ElementsAre(""), ElementsAre("b")));
  EXPECT_THAT(fields_of("a,b\n\n1,2\n\n\n3,4\n\n"), ElementsAre(ElementsAre("1", "2"), ElementsAre("3", "4")));
  const TestFile file("a\n1\n\n2\n", "gap.csv");
  EXPECT_THAT(message_of([&] { read_csv(file.path()); }), HasSubstr("line 3: column 'a': expected a number, got ''"));
}

TEST(Csv, NumbersTooSmallForFloat32AreZero) {
  const std::string zeros(400, '0');
  const TestFile file("x\n1e-50\n-1e-50\n1e-400\n-2.5E-99999999999999999999\n0." + zeros + "1\n0." + zeros + "1e+3\n1" +
                          zeros + "e-600\n1e-40\n",
                      "small.csv");
  const Tensor values = read_csv(file.path()).values;
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(values.span<float>()[i], 0) << i;
  EXPECT_TRUE(std::signbit(values.span<float>()[1]));
  EXPECT_TRUE(std::signbit(values.span<float>()[3]));
  EXPECT_EQ(values.span<float>()[7], 1e-40f);
  const std::vector<std::string> too_large = {
      "1e39", "-1e400", "1e99999999999999999999", "1" + zeros, "1" + zeros + "e-5", "0." + zeros + "1e+500"};
  for (const std::string& large : too_large) {
    const TestFile wrong("x\n" + large + "\n", "large.csv");
    EXPECT_THAT(message_of([&] { read_csv(wrong.path()); }), HasSubstr("does not fit into float32")) << large;
  }
  const TestFile text("x\n1e-50x\n", "text.csv");
  EXPECT_THAT(message_of([&] { read_csv(text.path()); }), HasSubstr("does not fit into float32"));
}

TEST(Csv, MistakesNameFileLineAndColumn) {
  const auto message = [](std::string_view content, const CsvOptions& options = {}) {
    const TestFile file(content, "wrong.csv");
    const std::string text = message_of([&] { read_csv(file.path(), options); });
    EXPECT_EQ(text.rfind(file.path(), 0), 0U) << text;
    return text;
  };
  EXPECT_THAT(message("a,b\n1,2\n3,x4\n"), HasSubstr("line 3: column 'b': expected a number, got 'x4'"));
  EXPECT_THAT(message("a,b\n\n\r\n1,x\n"), HasSubstr("line 4: column 'b'"));
  EXPECT_THAT(message("a,b\n1,\n"), HasSubstr("line 2: column 'b': expected a number, got ''"));
  EXPECT_THAT(message("1,2\n1,1e99\n", {.header = false}),
              HasSubstr("line 2: column 1: '1e99' does not fit into float32"));
  EXPECT_THAT(message("a,b\n1,2,3\n"),
              HasSubstr("line 2: has 3 fields, expected 2 as in the first line: is the separator ','?"));
  EXPECT_THAT(message("a,b\n1,\"2\n"), HasSubstr("line 2: field 2 begins with a quote that is not closed"));
  EXPECT_THAT(message("a,b\n1,\"2\"3\n"), HasSubstr("line 2: field 2 goes on after its closing quote"));
  EXPECT_THAT(message("a,a\n1,2\n"), HasSubstr("two columns have the name 'a'"));
  EXPECT_THAT(message("a,b\n"), HasSubstr("has no records after its header"));
  EXPECT_THAT(message("", {.header = false}), HasSubstr("has no records"));
  EXPECT_THAT(message("a\n\xff\n"), HasSubstr("UTF-8"));
  EXPECT_THAT(message("a,b\n\"1\n2\",3\n4,y\n"), AllOf(HasSubstr("line 2"), HasSubstr("column 'a'")));

  const TestFile file("a\n1\n3\n2\n", "names.csv");
  EXPECT_THAT(message_of([&] {
                CsvFile(file.path(), [](const CsvRecord& record) { return Sample{scalar(record.number("b"))}; });
              }),
              HasSubstr("line 2: no column has the name 'b'; the header has 'a'"));
  EXPECT_THAT(message_of([&] {
                CsvFile(file.path(), [](const CsvRecord& record) { return Sample{scalar(record.integer(3))}; });
              }),
              HasSubstr("column 3 does not exist: the record has 1 fields"));
  EXPECT_THAT(message_of([&] {
                CsvFile(file.path(), [](const CsvRecord& record) -> Sample {
                  if (record.integer("a") == 2) return {};
                  return {scalar(1.0f)};
                });
              }),
              HasSubstr("line 4: the function returned a sample without tensors"));
  EXPECT_THAT(message_of([&] { CsvFile(file.path(), nullptr); }),
              HasSubstr("the function that makes samples is empty"));
  EXPECT_THAT(message_of([&] { read_csv(file.path() + "x"); }), HasSubstr(file.path() + "x"));
}

TEST(Csv, DamagedFilesAreRefusedOrRead) {
  refused_when_damaged("a,\"b\"\n1,\"2\"\n", [](const std::string& path) { read_csv(path); });
}

}  // namespace
}  // namespace lockstep::data
