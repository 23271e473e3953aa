// Files of named tensors: round trips, refused files and arguments, and atomic saves.
#include "lockstep/train/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "lockstep/nn/layers.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;

// Makes tensors with every byte value, so that types and order are checked.
Tensor patterned(DType type, const Shape& shape) {
  const Tensor tensor = Tensor::empty(shape, type);
  for (std::size_t i = 0; i < tensor.bytes(); ++i)
    tensor.buffer().data()[i] = static_cast<std::byte>(i * 37 + static_cast<std::size_t>(type));
  return tensor;
}

std::vector<NamedTensor> one_of_each_type() {
  std::vector<NamedTensor> tensors;
  for (int type = kDTypes - 1; type >= 0; --type) {
    const auto dtype = static_cast<DType>(type);
    tensors.push_back({"of " + std::string(name_of(dtype)), patterned(dtype, {3, 1, 5})});
  }
  tensors.push_back({"scalar", patterned(DType::kFloat32, {})});
  tensors.push_back({"an empty one", Tensor::empty({0, 4}, DType::kInt64)});
  tensors.push_back({"six \"dimensions\" \xc3\xa4", patterned(DType::kUInt8, {1, 2, 1, 3, 1, 2})});
  return tensors;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// Returns a file with this header and that many bytes of data.
std::string file_of(const std::string& header, std::size_t bytes) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + std::string(bytes, 'x');
}

class SafetensorsFiles : public ::testing::Test {
 protected:
  const Folder folder_;
  const std::string path_ = folder_.path() + "/net.safetensors";
};

TEST_F(SafetensorsFiles, EveryTypeAndShapeComesBackInOrder) {
  const std::vector<NamedTensor> saved = one_of_each_type();
  save_safetensors(path_, saved, {{"format", "pt"}, {"note", "of two\nlines"}});
  const Safetensors loaded = load_safetensors(path_);
  EXPECT_EQ(loaded.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"note", "of two\nlines"}}));
  ASSERT_EQ(loaded.tensors.size(), saved.size());
  for (const NamedTensor& wanted : saved) {
    const auto found = std::find_if(loaded.tensors.begin(), loaded.tensors.end(),
                                    [&](const auto& entry) { return entry.name == wanted.name; });
    ASSERT_NE(found, loaded.tensors.end()) << wanted.name;
    EXPECT_EQ(found->tensor.dtype(), wanted.tensor.dtype()) << wanted.name;
    EXPECT_EQ(found->tensor.shape(), wanted.tensor.shape()) << wanted.name;
    EXPECT_EQ(std::memcmp(found->tensor.buffer().data(), wanted.tensor.buffer().data(), wanted.tensor.bytes()), 0)
        << wanted.name;
  }
  for (std::size_t i = 0; i < kDTypes; ++i)
    EXPECT_EQ(loaded.tensors[i].name, saved[i].name) << "the order must be kept";
  EXPECT_THAT(folder_.names(), ElementsAre("net.safetensors")) << "no other file is left";
}

TEST_F(SafetensorsFiles, AStateDictTravelsToAnotherModule) {
  nn::Sequential from, to;
  for (nn::Sequential* net : {&from, &to}) {
    net->append<nn::Conv2d>(2, 3, Size2{3, 3});
    net->append<nn::Linear>(4, 5);
  }
  save_safetensors(path_, from.state_dict());
  to.load_state_dict(load_safetensors(path_).tensors);
  for (std::size_t i = 0; i < from.parameters().size(); ++i)
    EXPECT_EQ(std::memcmp(from.parameters()[i].buffer().data(), to.parameters()[i].buffer().data(),
                          from.parameters()[i].bytes()),
              0);
  nn::Linear other(4, 5);
  EXPECT_THAT(message_of([&] { other.load_state_dict(load_safetensors(path_).tensors); }),
              AllOf(HasSubstr("2 missing from the state dict: 'weight' float32 (5, 4)"), HasSubstr("4 unexpected"),
                    HasSubstr("'0.weight'")));
}

TEST_F(SafetensorsFiles, ASaveReplacesTheFileBefore) {
  save_safetensors(path_, {{"a", Tensor::zeros({4})}});
  save_safetensors(path_, {{"b", Tensor::zeros({1})}});
  EXPECT_EQ(load_safetensors(path_).tensors[0].name, "b");
  save_safetensors(path_, {});
  EXPECT_TRUE(load_safetensors(path_).tensors.empty());
  EXPECT_THAT(folder_.names(), ElementsAre("net.safetensors"));
}

TEST_F(SafetensorsFiles, WhatTheFormatCannotHoldIsNamedAndTheFileBeforeStands) {
  save_safetensors(path_, {{"a", Tensor::zeros({4})}});
  const std::string before = read_text(path_);
  const Tensor tensor = Tensor::zeros({1});
  const auto refusal = [&](const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata = {}) {
    return message_of([&] { save_safetensors(path_, tensors, metadata); });
  };
  EXPECT_THAT(refusal({{"a", tensor}, {"b", tensor}, {"a", tensor}}), HasSubstr("'a' comes twice"));
  EXPECT_THAT(refusal({{"__metadata__", tensor}}), HasSubstr("'__metadata__' is the format's own"));
  EXPECT_THAT(refusal({{"gone", Tensor()}}), HasSubstr("'gone' is undefined"));
  EXPECT_THAT(refusal({{"\xff", tensor}}), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal({{"a", tensor}}, {{"k", "\xff"}}), HasSubstr("UTF-8"));
  EXPECT_THAT(message_of([&] { save_safetensors("", {}); }), HasSubstr("empty"));
  EXPECT_EQ(read_text(path_), before);
  EXPECT_THAT(folder_.names(), ElementsAre("net.safetensors"));
}

TEST_F(SafetensorsFiles, WhatTheFileSystemRefusesIsAFileErrorWithTheReason) {
  EXPECT_THAT(message_of([&] { save_safetensors(folder_.path() + "/none/net.safetensors", {}); }),
              AllOf(HasSubstr("/none/net.safetensors"), HasSubstr("no folder")));
  EXPECT_THAT(message_of([&] { save_safetensors(folder_.path(), {}); }), HasSubstr("is a folder"));
  EXPECT_THAT(message_of([&] { load_safetensors(path_); }), AllOf(HasSubstr(path_), HasSubstr("cannot be opened")));
  EXPECT_THROW(load_safetensors(folder_.path()), FileError);
}

// Simulates a full disk: the write ends halfway.
TEST_F(SafetensorsFiles, AFailedWriteKeepsThePreviousFile) {
  save_safetensors(path_, {{"a", Tensor::zeros({4})}});
  const std::string before = read_text(path_);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = message_of([&] { save_safetensors(path_, {{"large", Tensor::zeros({100000})}}); });
    _exit(message.find("net.safetensors") != std::string::npos && message.find("File too large") != std::string::npos
              ? 0
              : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(read_text(path_), before);
  EXPECT_THAT(folder_.names(), ElementsAre("net.safetensors"));
}

TEST_F(SafetensorsFiles, DamagedOnesAreRefusedWithTheReason) {
  const std::string entry = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const struct {
    std::string file, reason;
  } kCases[] = {
      {"", "0 bytes are no safetensors file"},
      {std::string(8, '\xff'), "header"},
      {file_of("{nonsense", 0), "the header is damaged"},
      {file_of("[]", 0).replace(0, 1, "\x03"), "a header of 3 bytes in a file of 10"},
      {file_of("[]", 0), "no JSON object"},
      {file_of("{" + entry + "}", 7), "'a' lies at 0..8 of 7 bytes"},
      {file_of("{" + entry + "}", 9), "1 bytes behind the last tensor"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12), "gap"},
      {file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), "'a' of F32 (3) has 8 bytes"},
      {file_of("{" + entry + "," + entry + "}", 8), "the name 'a' comes twice"},
      {file_of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
       "the header is damaged: shape of tensor 'a' is [-2]"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8),
       "shape of tensor 'a' is [2.5], expected"},
      {file_of(R"({"a":{"dtype":"F32","shape":)" + deep + R"(,"data_offsets":[0,8]}})", 8),
       "its JSON is nested more than 64 levels deep, at byte"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", 8),
       "tensor 'a' has 3 data_offsets, expected 2"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1e30]}})", 8),
       "data_offsets of tensor 'a' is [0,1e+30]"},
      {file_of(R"({"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,8]}})", 8),
       "the header is damaged"},
      {file_of("{" + entry + "," + R"("b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8), "overlap"},
  };
  for (const auto& [file, reason] : kCases) {
    write_text(path_, file);
    EXPECT_THAT(message_of([&] { load_safetensors(path_); }), AllOf(HasSubstr(path_), HasSubstr(reason))) << file;
  }
  write_text(path_, file_of("{" + entry + "}", 8));
  EXPECT_EQ(load_safetensors(path_).tensors[0].tensor.count(), 2) << "the same file without an error";
}

// A file of another framework may contain unsupported tensors, which must not prevent reading the others.
TEST_F(SafetensorsFiles, UnsupportedTensorsAreSkippedUnlessRequested) {
  write_text(
      path_,
      file_of(
          R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"mask":{"dtype":"BOOL","shape":[4],"data_offsets":[4,8]},)"
          R"("codes":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[8,10]},"ids":{"dtype":"U16","shape":[1],"data_offsets":[10,12]},)"
          R"("deep":{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[12,16]}})",
          16));
  testing::LogLines lines;
  const Safetensors loaded = load_safetensors(path_);
  ASSERT_EQ(loaded.tensors.size(), 1u);
  EXPECT_EQ(loaded.tensors[0].name, "w");
  EXPECT_EQ(loaded.unread.size(), 4u);
  EXPECT_THAT(loaded.unread.at("mask"), HasSubstr("it has the type BOOL; known are F32, F64"));
  EXPECT_THAT(loaded.unread.at("deep"), HasSubstr("7 dimensions, at most 6"));
  EXPECT_THAT(lines.text(), HasSubstr("4 tensors cannot be read and are left out"));
  EXPECT_EQ(load_safetensors(path_, {.names = {"w"}}).tensors.size(), 1u);
  EXPECT_THAT(message_of([&] {
                load_safetensors(path_, {.names = {"w", "mask"}});
              }),
              HasSubstr("tensor 'mask' cannot be read: it has the type BOOL"));
  EXPECT_THAT(message_of([&] { load_safetensors(path_, {.names = {"none"}}); }), HasSubstr("has no tensor 'none'"));
}

TEST_F(SafetensorsFiles, APointerOrAPageIsSaidToBeOne) {
  write_text(path_, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n");
  EXPECT_THAT(message_of([&] { load_safetensors(path_); }), HasSubstr("It is a Git LFS pointer"));
  write_text(path_, "<!DOCTYPE html><html><head><title>Sign in</title></head></html>");
  EXPECT_THAT(message_of([&] { load_safetensors(path_); }), HasSubstr("It is a web page (HTML)"));
}

// PyTorch's (out, in, height, width) may have the same extents as our (out, height, width, in).
TEST_F(SafetensorsFiles, ConvolutionsOfAnotherFrameworkAreRefusedUntilTheirLayoutIsGiven) {
  nn::Sequential net;
  net.append<nn::Conv2d>(3, 8, 3);
  const auto load = [&] { net.load_state_dict(load_safetensors(path_).tensors); };
  save_safetensors(path_, net.state_dict());
  EXPECT_EQ(load_safetensors(path_).tensors.convolution_weights, "OHWI");
  load();
  save_safetensors(path_, net.state_dict(), {{"format", "pt"}});
  EXPECT_THAT(message_of(load), HasSubstr("whose layout the file does not specify: '0.weight' (8, 3, 3, 3)"));
  const float before = net.parameters()[0].data<float>()[1];
  net.load_state_dict(load_safetensors(path_).tensors, {.convolution_weights = nn::ConvolutionWeights::kOihw});
  EXPECT_EQ(net.parameters()[0].data<float>()[3], before) << "the second column of the first channel";
}

TEST_F(SafetensorsFiles, PythonReadsThemAndTheyReadPythons) {
  const char* python = std::getenv("LOCKSTEP_TEST_PYTHON");
  if (python == nullptr || *python == '\0')
    GTEST_SKIP() << "LOCKSTEP_TEST_PYTHON names no python with safetensors and numpy";
  const Tensor counted = Tensor::empty({2, 3});
  for (float next = 0; float& value : counted.span<float>()) value = next++;
  save_safetensors(path_, {{"n", Tensor::zeros({2}, DType::kInt64)}, {"x", counted}}, {{"by", "lockstep"}});
  const std::string copy = folder_.path() + "/copy.safetensors";
  const std::string command =
      std::string(python) + " -c \"from safetensors.numpy import load_file, save_file; t = load_file('" + path_ +
      "'); assert t['x'].tolist() == [[0, 1, 2], [3, 4, 5]] and str(t['n'].dtype) == 'int64'; save_file({'y': "
      "t['x'] + 1, 'm': t['n'] + 7}, '" +
      copy + "', {'by': 'python'})\"";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const Safetensors loaded = load_safetensors(copy);
  EXPECT_EQ(loaded.metadata.at("by"), "python");
  ASSERT_EQ(loaded.tensors.size(), 2u);
  for (const auto& [name, tensor] : loaded.tensors)
    if (name == "y")
      EXPECT_EQ(tensor.span<float>()[5], 6);
    else
      EXPECT_EQ(tensor.span<std::int64_t>()[1], 7);
}

}  // namespace
}  // namespace lockstep::train
