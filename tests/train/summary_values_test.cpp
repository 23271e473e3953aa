// SummaryWriter's conversion of tensors and modules: buckets, pixels, nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/nn/layers.h"
#include "lockstep/train/summary_writer.h"
#include "src/train/events/histogram.h"
#include "src/train/events/module_graph.h"
#include "src/train/files/png.h"
#include "tests/support/log_lines.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/event_records.h"

namespace lockstep::train {
namespace {

using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

// -- histograms

TEST(Histograms, HaveBucketsOfEqualWidthWhenToldHowMany) {
  const float values[] = {0, 1, 1.5f, 9, 10};
  const events::Histogram histogram = events::histogram_of(Tensor::from<float>(values, {5}), 5);
  EXPECT_THAT(histogram.limits, ElementsAre(2, 8, 10)) << "empty buckets are merged";
  EXPECT_THAT(histogram.counts, ElementsAre(3, 0, 2));
  EXPECT_EQ(histogram.min, 0);
  EXPECT_EQ(histogram.max, 10);
  EXPECT_EQ(histogram.sum, 21.5);
  EXPECT_EQ(histogram.sum_of_squares, 1 + 2.25 + 81 + 100);
}

TEST(Histograms, OfOneValueOrNone) {
  for (const int buckets : {0, 1, 30}) {
    const events::Histogram one = events::histogram_of(Tensor::full({7}, 3), buckets);
    EXPECT_THAT(one.counts, ElementsAre(7)) << buckets;
    EXPECT_GE(one.limits[0], 3) << buckets;
    const events::Histogram none = events::histogram_of(Tensor::zeros({0}), buckets);
    EXPECT_TRUE(none.counts.empty() && none.limits.empty()) << buckets;
    EXPECT_EQ(none.finite, 0);
    EXPECT_EQ(none.max, 0);
  }
}

TEST(Histograms, HoldTheLargestAndTheSmallestNumbers) {
  const double values[] = {-std::numeric_limits<double>::max(), std::numeric_limits<double>::max(), 0, 5e-324};
  for (const int buckets : {0, 4}) {
    const events::Histogram histogram = events::histogram_of(Tensor::from<double>(values, {4}), buckets);
    double all = 0;
    for (const double count : histogram.counts) all += count;
    EXPECT_EQ(all, 4) << buckets;
    EXPECT_EQ(histogram.counts.size(), histogram.limits.size());
    EXPECT_TRUE(std::is_sorted(histogram.limits.begin(), histogram.limits.end()));
  }
}

TEST(Histograms, AreOfEveryType) {
  for (int type = 0; type < kDTypes; ++type) {
    const Tensor zeros = Tensor::zeros({4}, static_cast<DType>(type));
    EXPECT_EQ(events::histogram_of(zeros, 0).finite, 4) << name_of(zeros.dtype());
    EXPECT_THAT(events::histogram_of(zeros, 0).counts, ElementsAre(4)) << name_of(zeros.dtype());
  }
  const Tensor half = Tensor::zeros({1}, DType::kFloat16);
  const std::uint16_t minus_two = 0xc000;
  std::memcpy(half.buffer().data(), &minus_two, 2);
  EXPECT_EQ(events::histogram_of(half, 0).min, -2);
}

TEST(Histograms, LeaveOutWhatIsNotFiniteAndSaySoOnceATag) {
  const Folder folder;
  SummaryWriter writer(folder.path());
  const float values[] = {1, kNan, kInf, -kInf, 2};
  const Tensor tensor = Tensor::from<float>(values, {5});
  EXPECT_EQ(events::histogram_of(tensor, 0).finite, 2);
  const testing::LogLines log;
  EXPECT_EQ(writer.add_histogram("weights", tensor, 12), 3);
  EXPECT_EQ(
      log.text(),
      "add_histogram: 'weights', step 12: 3 of 5 values are not finite and are skipped; this is logged once per tag\n");
  EXPECT_EQ(writer.add_histogram("weights", tensor, 13), 3);
  EXPECT_EQ(std::count(log.text().begin(), log.text().end(), '\n'), 1);
}

// -- images

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Returns the chunks' names and data after verifying their checksums.
std::vector<std::pair<std::string, std::string>> chunks_of(const std::string& png) {
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  std::vector<std::pair<std::string, std::string>> chunks;
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const std::uint32_t length = big_endian(png, at);
    const std::string checked = png.substr(at + 4, length + 4);
    EXPECT_EQ(big_endian(png, at + 8 + length),
              crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size())));
    chunks.emplace_back(checked.substr(0, 4), checked.substr(4));
    at += length + 12;
  }
  return chunks;
}

struct Decoded {
  std::string header;  // IHDR, in hex
  std::string lines;   // each with its filter byte, in hex
};

Decoded decoded(const std::string& png) {
  const auto chunks = chunks_of(png);
  if (chunks.size() != 3) return {"", ""};
  EXPECT_EQ(chunks[0].first + chunks[1].first + chunks[2].first, "IHDRIDATIEND");
  std::string lines(10000, '\0');
  uLongf size = lines.size();
  EXPECT_EQ(uncompress(reinterpret_cast<Bytef*>(lines.data()), &size,
                       reinterpret_cast<const Bytef*>(chunks[1].second.data()), chunks[1].second.size()),
            Z_OK);
  return {testing::hex_of(chunks[0].second), testing::hex_of(lines.substr(0, size))};
}

TEST(Images, ArePngOfGreyRgbAndRgba) {
  const std::uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_EQ(decoded(events::png_of({2, 6, 1, bytes})).header,
            "00000006"
            "00000002"
            "0800000000");
  EXPECT_EQ(decoded(events::png_of({2, 6, 1, bytes})).lines,
            "00010203040506"
            "000708090a0b0c");
  EXPECT_EQ(decoded(events::png_of({2, 2, 3, bytes})).header,
            "00000002"
            "00000002"
            "0802000000");
  EXPECT_EQ(decoded(events::png_of({1, 3, 4, bytes})).header,
            "00000003"
            "00000001"
            "0806000000");
  EXPECT_EQ(decoded(events::png_of({1, 3, 4, bytes})).lines, "000102030405060708090a0b0c");
}

// Returns the image of the last record.
Decoded written_image(SummaryWriter& writer) {
  writer.close();
  const std::string bytes = testing::bytes_of_file(writer.file());
  const std::size_t begin = bytes.rfind("\x89PNG"), end = bytes.rfind("IEND");
  return decoded(bytes.substr(begin, end + 8 - begin));
}

TEST(Images, TakeFloatsFrom0To1) {
  const Folder folder;
  SummaryWriter writer(folder.path());
  const float values[] = {0, 0.5f, 1, -1, 2, kNan, kInf, 0.1f};
  writer.add_image("i", Tensor::from<float>(values, {2, 4}), 0);
  EXPECT_EQ(written_image(writer).lines,
            "000080ff00"
            "00ff00ff1a");
}

TEST(Images, StandInAGrid) {
  const Folder folder;
  SummaryWriter writer(folder.path());
  std::vector<std::uint8_t> values(3 * 2 * 1 * 3);  // three images of 2 x 1 RGB pixels
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i + 1);
  writer.add_images("i", Tensor::from<std::uint8_t>(values, {3, 2, 1, 3}), 0, {.columns = 2});
  const Decoded image = written_image(writer);
  EXPECT_EQ(image.header,
            "00000002"
            "00000004"
            "0802000000");
  EXPECT_EQ(image.lines,
            "00010203070809"
            "000405060a0b0c"
            "000d0e0f000000"
            "00101112000000");
}

// -- graphs

// Returns the fields of a message that are text or messages, in order.
std::vector<std::pair<int, std::string>> fields_of(const std::string& message) {
  std::vector<std::pair<int, std::string>> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0; at < message.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[at++]);
      value |= std::uint64_t{byte & 127u} << shift;
      if (byte < 128) break;
    }
    return value;
  };
  while (at < message.size()) {
    const std::uint64_t key = varint(), value = varint();  // graphs have no numbers of fixed width
    if (key % 8 != 2) continue;
    fields.emplace_back(static_cast<int>(key / 8), message.substr(at, value));
    at += value;
  }
  return fields;
}

// Returns "name op <- inputs [keys of attributes]" for each node.
std::vector<std::string> nodes_of(const events::Message& graph) {
  std::vector<std::string> nodes;
  for (const auto& [number, node] : fields_of(graph.data())) {
    if (number != 1) continue;
    std::string name, op, inputs, keys;
    for (const auto& [field, text] : fields_of(node)) {
      if (field == 1) name = text;
      if (field == 2) op = text;
      if (field == 3) inputs += " " + text;
      if (field == 5) keys += " " + fields_of(text)[0].second;
    }
    nodes.push_back(name + " " + op + " <-" + inputs + " |" + keys);
  }
  return nodes;
}

// A sum of two paths with operators between its layers.
struct Block : nn::Module {
  nn::Linear first{3, 3}, second{3, 3}, shortcut{3, 3};
  Tensor scale = Tensor::full({3}, 2);
  Block() { add("first", first), add("second", second), add("shortcut", shortcut), add_buffer("scale", scale); }
  std::string kind() const override { return "Block"; }
  Tensor forward(const Tensor& x) override {
    const Tensor y = second(relu(first(x)));
    return relu(lockstep::add(y, shortcut(x)));
  }
};

struct Net : nn::Module {
  Block one, two;
  nn::Linear out{3, 2, {.bias = false}};
  Net() { add("one", one), add("two", two), add("out", out); }
  Tensor forward(const Tensor& x) override { return out(two(one(x))); }
};

TEST(Graphs, JoinModulesAsTheirTensorsWent) {
  Net net;
  const nn::InputSpec input{{4, 3}};
  const std::string all = " | _output_shapes options parameter.bias parameter.weight";
  EXPECT_THAT(nodes_of(events::graph_of(net, {&input, 1})),
              ElementsAre("input Placeholder <- | _output_shapes", "one/first Linear <- input" + all,
                          "one/second Linear <- one/first" + all, "one/shortcut Linear <- input" + all,
                          "one/parameters Block <- | buffer.scale",
                          "one/output Output <- one/second one/shortcut | _output_shapes",
                          "two/first Linear <- one/output" + all, "two/second Linear <- two/first" + all,
                          "two/shortcut Linear <- one/output" + all, "two/parameters Block <- | buffer.scale",
                          "two/output Output <- two/second two/shortcut | _output_shapes",
                          "out Linear <- two/output | _output_shapes options parameter.weight",
                          "output Output <- out | _output_shapes"));
}

TEST(Graphs, FollowTheOrderOfRegistrationWithoutInputs) {
  Net net;
  const std::string all = " | options parameter.bias parameter.weight";
  EXPECT_THAT(nodes_of(events::graph_of(net)),
              ElementsAre("one/first Linear <-" + all, "one/second Linear <- one/first" + all,
                          "one/shortcut Linear <- one/second" + all, "one/parameters Block <- | buffer.scale",
                          "two/first Linear <- one/shortcut" + all, "two/second Linear <- two/first" + all,
                          "two/shortcut Linear <- two/second" + all, "two/parameters Block <- | buffer.scale",
                          "out Linear <- two/shortcut | options parameter.weight"));
}

// The same layer used twice, with two inputs.
struct Twice : nn::Module {
  nn::Linear shared{3, 3};
  Twice() { add("shared", shared); }
  Tensors forward_all(const Tensors& inputs) override {
    check_inputs(inputs, 2);
    return {shared(inputs[0]), shared(inputs[1])};
  }
};

TEST(Graphs, HaveANodeForEachCall) {
  Twice net;
  const nn::InputSpec inputs[] = {{{1, 3}}, {{2, 3}}};
  const std::string all = " | _output_shapes options parameter.bias parameter.weight";
  EXPECT_THAT(nodes_of(events::graph_of(net, inputs)),
              ElementsAre("input_0 Placeholder <- | _output_shapes", "input_1 Placeholder <- | _output_shapes",
                          "shared Linear <- input_0" + all, "shared_1 Linear <- input_1" + all,
                          "output Output <- shared shared_1 | _output_shapes"));
}

TEST(Graphs, OfALayerAloneHaveOneNode) {
  nn::Linear layer(3, 2);
  EXPECT_THAT(nodes_of(events::graph_of(layer)),
              ElementsAre("Linear Linear <- | options parameter.bias parameter.weight"));
}

}  // namespace
}  // namespace lockstep::train
