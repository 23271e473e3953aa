// Event files compared byte by byte. The expected records were made without the library: with the messages of Python's
// tensorboard 2.21.0 and a bitwise checksum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/nn/layers.h"
#include "lockstep/train/summary_writer.h"
#include "src/train/events/event_file.h"
#include "src/train/events/summary_messages.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/event_records.h"

namespace lockstep::train {
namespace {

using ::testing::ElementsAre;
using testing::Folder;
using testing::records_of;

constexpr double kTime = 1700000000.25;

const std::string kVersion = "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9";

// RFC 3720, B.4, and the usual check value.
TEST(EventFile, ItsChecksumIsCrc32C) {
  std::string up, down;
  for (int i = 0; i < 32; ++i) up += static_cast<char>(i), down += static_cast<char>(31 - i);
  EXPECT_EQ(events::crc32c(""), 0u);
  EXPECT_EQ(events::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(events::crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(events::crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(events::crc32c(up), 0x46dd794eu);
  EXPECT_EQ(events::crc32c(down), 0x113fdb5cu);
  EXPECT_EQ(events::masked_crc32c(""), 0xa282ead8u);
}

TEST(EventFile, ItsNameIsTensorBoards) {
  EXPECT_THAT(events::event_file_name(kTime),
              ::testing::MatchesRegex("events.out.tfevents.1700000000\\.[^/]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(events::event_file_name(5), ::testing::HasSubstr("tfevents.0000000005."));
  EXPECT_NE(events::event_file_name(5), events::event_file_name(5)) << "the last part is a counter";
}

class SummaryRecords : public ::testing::Test {
 protected:
  std::vector<std::string> written() {
    writer_.close();
    return records_of(writer_.file());
  }

  const Folder folder_;
  SummaryWriter writer_{folder_.path(), {.clock = [] { return kTime; }, .file_name = "events"}};
};

TEST_F(SummaryRecords, Scalars) {
  writer_.add_scalar("loss/train", 0.5, 7);
  writer_.add_scalar("zero", 0, 0);
  writer_.add_scalar("a", std::numeric_limits<double>::infinity(), -1);
  EXPECT_THAT(
      written(),
      ElementsAre(kVersion,
                  "200000000000000029eda9500900001040fc54d94110072a130a110a0a6c6f73732f747261696e150000003fb3a98d8a",
                  "1800000000000000a37f4b220900001040fc54d9412a0d0a0b0a047a65726f1500000000a4f5e67c",
                  "200000000000000029eda9500900001040fc54d94110ffffffffffffffffff012a0a0a080a0161150000807f1a6d66d3"));
}

// With this record readers drop that step and later ones from older files.
TEST_F(SummaryRecords, TheStepFromWhichARunContinues) {
  const auto written_from = [&](std::int64_t step) {
    const std::string name = "from" + std::to_string(step);
    SummaryWriter writer(folder_.path(), {.clock = [] { return kTime; }, .file_name = name, .purge_step = step});
    writer.add_scalars("loss", {{"a", 1}}, step);
    writer.close();
    const auto records = records_of(folder_.path() + "/loss_a/" + name);
    EXPECT_EQ(records.size(), 3U) << "additional runs of the writer continue, too";
    EXPECT_EQ(std::vector<std::string>(records.begin(), records.begin() + 2), records_of(writer.file()));
    return records_of(writer.file());
  };
  EXPECT_THAT(written_from(0), ElementsAre(kVersion, "0d000000000000003c37b8340900001040fc54d9413a0208018c8e54cd"));
  EXPECT_THAT(written_from(300),
              ElementsAre(kVersion, "100000000000000095fbfe180900001040fc54d94110ac023a0208016b3b88f1"));
}

// Readers take files in the order of their names, which a clock that was set back or another machine's clock must not
// change.
TEST(EventFile, OfAContinuedRunSortsAfterTheOthers) {
  const Folder folder;
  const auto name_of_writer = [&](double seconds, std::optional<std::int64_t> purge_step) {
    SummaryWriter writer(folder.path(), {.clock = [=] { return seconds; }, .purge_step = purge_step});
    return std::filesystem::path(writer.file()).filename().string();
  };
  EXPECT_THAT(name_of_writer(1000, std::nullopt), ::testing::HasSubstr("tfevents.0000001000."));
  EXPECT_THAT(name_of_writer(1000, 5), ::testing::HasSubstr("tfevents.0000001001."));
  EXPECT_THAT(name_of_writer(500, 5), ::testing::HasSubstr("tfevents.0000001002."));
  EXPECT_THAT(name_of_writer(2000, 5), ::testing::HasSubstr("tfevents.0000002000."));
}

TEST_F(SummaryRecords, AHistogramInTensorFlowsBuckets) {
  const float values[] = {1, 2, 2, -0.5f};
  EXPECT_EQ(writer_.add_histogram("weights", Tensor::from<float>(values, {2, 2}), 3), 0);
  EXPECT_THAT(
      written(),
      ElementsAre(
          kVersion,
          "9e00000000000000da84ca450900001040fc54d94110032a90010a8d010a07776569676874732a810109000000000000e0bf11000000"
          "00000000401900000000000010402100000000000012402900000000008022403228fae55a25d31fdebf08996919155aed3f2b14fa"
          "cdbe24f03fdc94cd2e8d75ff3fe011f10c744d01403a28000000000000f03f0000000000000000000000000000f03f000000000000"
          "00000000000000000040fad21859"));
}

TEST_F(SummaryRecords, Text) {
  writer_.add_text("note", "# h\xc3\xa9", 1);
  EXPECT_THAT(
      written(),
      ElementsAre(
          kVersion,
          "2c00000000000000f4aecc450900001040fc54d94110012a1f0a1d0a046e6f7465420b080712004205232068c3a94a080a060a047465"
          "78740f86c5a3"));
}

TEST_F(SummaryRecords, HyperParameters) {
  writer_.add_hparams({{"lr", 0}, {"net", "deep"}, {"adam", false}}, {{"accuracy", 0.75}});
  EXPECT_THAT(written(),
              ElementsAre(kVersion,
                          "6e00000000000000c4bf33640900001040fc54d9412a630a610a145f68706172616d735f2f6578706572696d656e"
                          "7442060801120212004a410a3f"
                          "0a0768706172616d73123412321900001040fc54d94122080a046164616d200222060a026c72200322070a036e65"
                          "7420012a0c0a0a1208616363"
                          "7572616379b14b8b74",
                          "79000000000000008a13537b0900001040fc54d9412a6e0a6c0a1c5f68706172616d735f2f73657373696f6e5f73"
                          "746172745f696e666f420608"
                          "01120212004a440a420a0768706172616d7312371a350a0a0a046164616d120220000a0f0a026c72120911000000"
                          "00000000000a0d0a036e6574"
                          "12061a04646565702900001040fc54d9417dfc088b",
                          "4d000000000000003d63d4a60900001040fc54d9412a420a400a1a5f68706172616d735f2f73657373696f6e5f65"
                          "6e645f696e666f4206080112"
                          "0212004a1a0a180a0768706172616d73120d220b08011100001040fc54d9410c9c3f4e",
                          "1c00000000000000c8c1951d0900001040fc54d9412a110a0f0a086163637572616379150000403f2cf29e1b"));
}

TEST_F(SummaryRecords, AGraph) {
  nn::Sequential net;
  net.append<nn::Linear>(2, 3);
  net.append<nn::ReLU>();
  writer_.add_graph(net);
  EXPECT_THAT(written(), ElementsAre(kVersion,
                                     "8400000000000000411d8aef0900001040fc54d94122790a650a013012064c696e6561722a110a076"
                                     "f7074696f6e7312061204322c2033"
                                     "2a1f0a0e706172616d657465722e62696173120d120b666c6f61743332202833292a240a107061726"
                                     "16d657465722e7765696768741210"
                                     "120e666c6f617433322028332c2032290a0c0a0131120452654c551a013022020816eafb36c6"));
}

TEST(SummaryMessages, AnImage) {
  const events::Message event = events::image_event({kTime, 2}, "digits", {2, 300, 3, "png"});
  EXPECT_EQ(
      testing::hex_of(events::record_of(event)),
      "2500000000000000eabc36f30900001040fc54d94110022a180a160a06646967697473220c080210ac0218032203706e67caed5a7b");
}

}  // namespace
}  // namespace lockstep::train
