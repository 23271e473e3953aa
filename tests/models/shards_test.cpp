// Pretrained models of several files: the plan, the index, and what an earlier model leaves in the folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/models/pretrained.h"
#include "lockstep/nn/layers.h"
#include "lockstep/train/safetensors.h"
#include "src/models/pretrained_writer.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"

namespace lockstep::models {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Plan = std::vector<std::vector<std::size_t>>;

constexpr const char *kFirst = "model-00001-of-00002.safetensors", *kSecond = "model-00002-of-00002.safetensors",
                     *kWhole = "model.safetensors", *kIndex = "model.safetensors.index.json";

// Four tensors of 24, 8, 40 and 20 bytes.
struct TwoLayers : nn::Module {
  nn::Linear a{3, 2}, b{2, 5};
  explicit TwoLayers(float value) {
    add("a", a), add("b", b);
    for (const NamedTensor& each : state_dict()) each.tensor.fill(value);
  }
};

class ShardedFolder {
 public:
  ~ShardedFolder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(path_)) found.insert(entry.path().filename().string());
    return found;
  }
  void save(float value, std::int64_t most) const {
    save_pretrained(TwoLayers(value), path_, {.max_shard_size = most});
  }
  float load() const {
    TwoLayers net(-1);
    load_pretrained(net, path_);
    for (const NamedTensor& each : net.state_dict())
      for (const float value : each.tensor.span<float>()) EXPECT_EQ(value, net.a.bias.data<float>()[0]) << each.name;
    return net.a.bias.data<float>()[0];
  }

 private:
  std::string path_ = testing::temporary("shards");
};

TEST(ShardPlan, KeepsTheOrderAndTheLimit) {
  const auto plan = [](std::vector<std::uint64_t> bytes, std::uint64_t most) { return plan_shards(bytes, most); };
  EXPECT_EQ(plan({}, 10), Plan{});
  EXPECT_EQ(plan({4, 6, 1}, 10), (Plan{{0, 1}, {2}}));
  EXPECT_EQ(plan({4, 6, 1}, 11), (Plan{{0, 1, 2}}));
  EXPECT_EQ(plan({0, 10, 0, 1}, 10), (Plan{{0, 1, 2}, {3}}));
  EXPECT_EQ(plan({5, 11, 5, 5}, 10), (Plan{{0}, {1}, {2, 3}}));  // a tensor above the limit has its own shard
  EXPECT_EQ(plan({5, 5}, 1), (Plan{{0}, {1}}));
  EXPECT_EQ(plan({UINT64_MAX / 2, UINT64_MAX / 2}, UINT64_MAX), (Plan{{0, 1}}));
}

TEST(Shards, AreWrittenWithAnIndexThatNamesEveryTensor) {
  const ShardedFolder folder;
  folder.save(3, 60);
  EXPECT_THAT(folder.names(), ElementsAre(kFirst, kSecond, kIndex));
  std::ifstream file(folder.file(kIndex));
  const auto index = nlohmann::json::parse(file);
  EXPECT_EQ(index.at("metadata").at("total_size"), 92);
  EXPECT_EQ(index.at("weight_map"),
            nlohmann::json({{"a.bias", kFirst}, {"a.weight", kFirst}, {"b.bias", kFirst}, {"b.weight", kSecond}}));
  const auto second = train::load_safetensors(folder.file(kSecond));
  EXPECT_EQ(second.metadata.at("format"), "pt");
  EXPECT_EQ(second.tensors.size(), 1U);
  EXPECT_EQ(folder.load(), 3);
}

TEST(Shards, FewBytesAndZeroGiveOneFile) {
  for (const std::int64_t most : {std::int64_t{0}, std::int64_t{92}, SavePretrainedOptions{}.max_shard_size}) {
    const ShardedFolder folder;
    folder.save(2, most);
    EXPECT_THAT(folder.names(), ElementsAre(kWhole)) << most;
  }
}

TEST(Shards, ReplaceAnEarlierModelOfAnyForm) {
  for (const std::int64_t after : {0, 20, 60}) {
    const ShardedFolder fresh;
    fresh.save(2, after);
    for (const std::int64_t before : {0, 20, 60}) {
      SCOPED_TRACE(fmt::format("{} after {}", after, before));
      const ShardedFolder folder;
      folder.save(1, before);
      folder.save(2, after);
      EXPECT_EQ(folder.load(), 2);
      EXPECT_EQ(folder.names(), fresh.names()) << "files of the earlier model stay, or the names differ";
    }
  }
}

TEST(Shards, ThatTheModelLeavesNoneOfAreNotTouched) {
  const ShardedFolder folder;
  folder.save(1, 0);
  for (const char* name : {"model-00001-of-0002.safetensors", "model-best-00001-of-00002.safetensors", "tokenizer.json",
                           "adapter_model.safetensors"})
    std::ofstream(folder.file(name)) << "mine";
  folder.save(2, 60);
  EXPECT_EQ(folder.names().size(), 7U);
}

// An interrupted save leaves shards without their index.
TEST(Shards, WithoutTheirIndexAreNotRead) {
  const ShardedFolder folder, other;
  other.save(2, 60);
  folder.save(1, 0);
  fs::copy(other.file(kFirst), folder.file(kFirst));
  EXPECT_EQ(folder.load(), 1);
  folder.save(3, 60);
  EXPECT_EQ(folder.load(), 3);
  const auto beside = folder.file("model-0123abcd-00001-of-00002.safetensors");
  fs::copy(other.file(kFirst), beside);
  EXPECT_EQ(folder.load(), 3);
  folder.save(4, 60);
  EXPECT_FALSE(fs::exists(beside));
  EXPECT_EQ(folder.load(), 4);
}

TEST(Shards, ThatCannotBeWrittenLeaveTheEarlierModel) {
  const ShardedFolder folder;
  folder.save(1, 60);
  const auto before = folder.names();
  TwoLayers net(2);
  EXPECT_THAT(message_of([&] { save_pretrained(net, folder.path(), {.max_shard_size = -1}); }),
              HasSubstr("max_shard_size is -1, expected a number of bytes, or 0 for one file"));
  const NameMapping twice{
      .rules = {{.in_file = "same", .in_module = ".*bias"},
                {.in_file = "x", .in_module = "x", .written_pattern = ".*bias", .written_name = "same"}}};
  EXPECT_THAT(message_of([&] { save_pretrained(net, folder.path(), {.names = twice, .max_shard_size = 60}); }),
              HasSubstr("the name 'same' comes twice"));
  EXPECT_EQ(folder.names(), before);
  EXPECT_EQ(folder.load(), 1);
  // The index cannot take its place.
  const ShardedFolder blocked;
  blocked.save(1, 0);
  fs::create_directories(blocked.file(kIndex) + "/full");
  EXPECT_THAT(message_of([&] { blocked.save(2, 60); }), HasSubstr("index.json: is a folder, expected a file's name"));
  EXPECT_EQ(blocked.load(), 1);
}

}  // namespace
}  // namespace lockstep::models
