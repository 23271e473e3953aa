// Tests of .npy files: all types, rows of mapped files, and damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "lockstep/data/loader.h"
#include "lockstep/data/npy.h"
#include "src/data/formats/npy.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string npy_of(const std::string& type, const std::vector<std::int64_t>& shape, const std::vector<T>& values) {
  std::string file = npy_header_text(type, shape);
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return file;
}

TEST(Npy, EveryTypeComesBackAsItWasWritten) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kInt8, DType::kUInt8, DType::kInt32, DType::kInt64})
    for (const Shape& shape : {Shape(), Shape({0, 3}), Shape({5}), Shape({2, 3, 4})}) {
      const Tensor written = Tensor::empty(shape, dtype, cpu_device());
      for (std::size_t i = 0; i < written.bytes(); ++i) written.buffer().data()[i] = static_cast<std::byte>(i * 37);
      const TestFile file("", "types.npy");
      write_npy(file.path(), written);
      const Tensor read = read_npy(file.path());
      EXPECT_EQ(read.shape(), shape);
      ASSERT_EQ(read.dtype(), dtype);
      EXPECT_TRUE(written.bytes() == 0 ||
                  std::memcmp(read.buffer().data(), written.buffer().data(), written.bytes()) == 0);
    }
}

TEST(Npy, NarrowIntegersAreWidened) {
  const auto values = [](const std::string& content) { return read_npy(TestFile(content, "narrow.npy").path()); };
  EXPECT_THAT(values(npy_of<std::int16_t>("<i2", {2}, {-3, 300})).span<std::int32_t>(), ElementsAre(-3, 300));
  EXPECT_THAT(values(npy_of<std::uint16_t>("<u2", {2}, {3, 65535})).span<std::int32_t>(), ElementsAre(3, 65535));
  EXPECT_THAT(values(npy_of<std::uint32_t>("<u4", {1}, {4294967295U})).span<std::int64_t>(), ElementsAre(4294967295));
  EXPECT_THAT(values(npy_of<std::uint8_t>("|b1", {2}, {0, 1})).span<std::uint8_t>(), ElementsAre(0, 1));
}

TEST(Npy, RowsOfSeveralFilesAreSamples) {
  const TestFile x(npy_of<float>("<f4", {3, 2}, {1, 2, 3, 4, 5, 6}), "x.npy");
  const TestFile y(npy_of<std::int16_t>("<i2", {3}, {7, 8, 9}), "y.npy");
  const NpyDataset set({x.path(), y.path()});
  const DistributedSampler sampler(set.size(), {}, {.shuffle = false});
  DataLoader loader(set, sampler, {.batch_size = 2});
  std::vector<float> inputs;
  std::vector<std::int32_t> targets;
  for (auto& [input, target] : loader) {
    inputs.insert(inputs.end(), input.span<float>().begin(), input.span<float>().end());
    targets.insert(targets.end(), target.span<std::int32_t>().begin(), target.span<std::int32_t>().end());
  }
  EXPECT_THAT(inputs, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(targets, ElementsAre(7, 8, 9));
  EXPECT_THAT(message_of([&] { set.get(3, 0); }), HasSubstr("sample 3 does not exist; the set has 3"));
}

TEST(Npy, MistakesNameTheFile) {
  const auto message = [](const std::string& content) {
    const TestFile file(content, "wrong.npy");
    const std::string text = message_of([&] { read_npy(file.path()); });
    EXPECT_EQ(text.rfind(file.path(), 0), 0U) << text;
    EXPECT_EQ(message_of([&] { NpyDataset({file.path()}); }), text);
    return text;
  };
  EXPECT_THAT(message(npy_of<float>(">f4", {1}, {1})), HasSubstr("holds values of type '>f4', expected"));
  EXPECT_THAT(message(npy_of<float>("<f4", {3}, {1})), HasSubstr("has 4 bytes after its header, which requires 12"));
  EXPECT_THAT(message(npy_of<float>("<f4", {1, 1, 1, 1, 1, 1, 1}, {1})),
              HasSubstr("has 7 dimensions, expected at most 6"));
  EXPECT_THAT(message("no array"), HasSubstr("does not begin as a .npy file"));
  std::string fortran = npy_of<float>("<f4", {2}, {1, 2});
  fortran.replace(fortran.find("False"), 5, "True ");
  EXPECT_THAT(message(fortran), HasSubstr("is in Fortran's order"));
  for (const std::string_view spaced : {":True  ", ":  True ", ":\tTrue "}) {
    std::string other = npy_of<float>("<f4", {2}, {1, 2});
    other.replace(other.find(": False"), spaced.size(), spaced);
    EXPECT_THAT(message(other), HasSubstr("is in Fortran's order"));
  }
  for (const std::string_view other : {"false", "1    ", "     "}) {
    std::string unread = npy_of<float>("<f4", {2}, {1, 2});
    unread.replace(unread.find("False"), 5, other);
    EXPECT_THAT(message(unread), HasSubstr("has a header without 'fortran_order': True or False"));
  }
  std::string huge = npy_of<float>("<f4", {1}, {1});
  huge.replace(huge.find("(1,)"), 30, "(9999999999999, 9999999999999)");
  EXPECT_THAT(message(huge), HasSubstr("more than 64 bits"));
  EXPECT_GT(refused_when_damaged(npy_of<float>("<f4", {1}, {1}), [](const std::string& path) { read_npy(path); }), 80);

  const TestFile two(npy_of<float>("<f4", {2}, {1, 2}), "two.npy"),
      three(npy_of<float>("<f4", {3}, {1, 2, 3}), "three.npy"), single(npy_of<float>("<f4", {}, {1}), "single.npy");
  EXPECT_THAT(message_of([&] { NpyDataset({two.path(), three.path()}); }), HasSubstr("has 3 rows, and"));
  EXPECT_THAT(message_of([&] { NpyDataset({single.path()}); }), HasSubstr("a single value, expected an array of rows"));
  EXPECT_THAT(message_of([] { NpyDataset({}); }), HasSubstr("empty list"));
  EXPECT_THAT(message_of([] { write_npy("x.npy", Tensor::empty({1}, DType::kBFloat16, cpu_device())); }),
              HasSubstr("expected a CPU tensor of a type that NumPy has, got bfloat16"));
  EXPECT_THAT(message_of([&] { write_npy(two.path() + "/x.npy", Tensor::zeros({1})); }),
              HasSubstr("cannot be written"));
}

}  // namespace
}  // namespace lockstep::data
