// scripts/fetch-data against a server on loopback: complete and interrupted downloads, wrong checksums, no network.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/crypto.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string sha256_hex(const std::string& text) { return crypto::hex(crypto::sha256(std::as_bytes(std::span(text)))); }

class FetchData : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "server");
    for (int i = 0; i < 5000; ++i) text_ += "line " + std::to_string(i) + "\n";
    std::ofstream(folder_ / "server/input.txt") << text_;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Runs the script with a table that expects this checksum of the text; the table names a server's port.
  struct Outcome {
    int exit_code;
    std::string output, errors;
  };
  Outcome fetch(const std::string& port, const std::string& checksum, const std::vector<std::string>& more = {}) const {
    const std::string address = "http://127.0.0.1:" + port + "/input.txt";
    std::ofstream(folder_ / "table.json")
        << R"({"tinyshakespeare": {"files": [[")" << address << R"(", ")" << checksum << R"("]]}})";
    return run({"tinyshakespeare", "--table", (folder_ / "table.json").string()}, more);
  }
  Outcome run(std::vector<std::string> words, const std::vector<std::string>& more = {}) const {
    words.insert(words.begin(), {"python3", FETCH_DATA});
    words.insert(words.end(), {"--data", (folder_ / "data").string()});
    words.insert(words.end(), more.begin(), more.end());
    Child script(words,
                 {.unset = {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}});
    const int exit_code = script.wait(std::chrono::seconds(60));
    return {exit_code, script.output(), script.errors()};
  }

  // Serves the folder until the test ends; returns the port.
  std::string serve(const std::vector<std::string>& flags = {}) {
    std::vector<std::string> words = {"python3", RANGE_SERVER, (folder_ / "server").string(),
                                      (folder_ / "log").string()};
    words.insert(words.end(), flags.begin(), flags.end());
    server_ = std::make_unique<Child>(words);
    EXPECT_TRUE(server_->wait_for_output("\n")) << server_->errors();
    return server_->output().substr(0, server_->output().find('\n'));
  }
  std::string text_of(const fs::path& path) const {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  fs::path file() const { return folder_ / "data/tinyshakespeare/input.txt"; }

  const fs::path folder_ = fs::path(::testing::TempDir()) / ("fetch-data-" + std::to_string(::getpid()));
  std::string text_;
  std::unique_ptr<Child> server_;
};

TEST_F(FetchData, PutsAFileThereOnce) {
  const std::string port = serve();
  const Outcome first = fetch(port, sha256_hex(text_));
  EXPECT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_THAT(first.output, HasSubstr("tinyshakespeare is in " + file().parent_path().string()));
  EXPECT_EQ(text_of(file()), text_);
  const Outcome second = fetch(port, sha256_hex(text_));
  EXPECT_EQ(second.exit_code, 0) << second.errors;
  EXPECT_THAT(second.output, HasSubstr("is there already"));
  EXPECT_EQ(text_of(folder_ / "log"), "/input.txt - 200\n") << "it was requested once";
}

TEST_F(FetchData, GoesOnWhereADownloadWasCutOff) {
  const Outcome run = fetch(serve({"--cut", "20000"}), sha256_hex(text_));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("going on at byte 20000"));
  EXPECT_EQ(text_of(file()), text_);
  EXPECT_EQ(text_of(folder_ / "log"), "/input.txt - 200\n/input.txt bytes=20000- 206\n");
}

TEST_F(FetchData, GoesOnWhereAnEarlierRunEnded) {
  fs::create_directories(file().parent_path());
  std::ofstream(file().string() + ".part") << text_.substr(0, 1000);
  const Outcome run = fetch(serve(), sha256_hex(text_));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_EQ(text_of(file()), text_);
  EXPECT_EQ(text_of(folder_ / "log"), "/input.txt bytes=1000- 206\n");
}

TEST_F(FetchData, BeginsAnewWhereTheServerCannotResume) {
  const Outcome run = fetch(serve({"--cut", "20000", "--no-ranges"}), sha256_hex(text_));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("cannot resume"));
  EXPECT_EQ(text_of(file()), text_);
}

TEST_F(FetchData, RefusesAWrongChecksumAndKeepsNothing) {
  const Outcome run = fetch(serve(), sha256_hex("another text"));
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_THAT(run.errors, AllOf(HasSubstr(sha256_hex(text_)), HasSubstr("expected " + sha256_hex("another text"))));
  EXPECT_TRUE(fs::is_empty(file().parent_path()));
}

TEST_F(FetchData, ReplacesADamagedFile) {
  fs::create_directories(file().parent_path());
  std::ofstream(file()) << "damaged";
  const Outcome run = fetch(serve(), sha256_hex(text_));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("is another file or damaged"));
  EXPECT_EQ(text_of(file()), text_);
}

TEST_F(FetchData, PrintsTheAddressWhenThereIsNoNetwork) {
  const std::string port = serve();
  server_.reset();  // nothing listens there any more
  const Outcome run = fetch(port, sha256_hex(text_));
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_THAT(run.errors, AllOf(HasSubstr("cannot download http://127.0.0.1:" + port + "/input.txt"),
                                HasSubstr("put it there: " + file().string())));
}

TEST_F(FetchData, SaysThatTheServerHasNoSuchFile) {
  fs::remove(folder_ / "server/input.txt");
  const Outcome run = fetch(serve(), sha256_hex(text_));
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_THAT(run.errors, HasSubstr("Not Found"));
}

// The checksums of the real sets do not depend on the server.
TEST_F(FetchData, AMirrorCannotServeOtherFiles) {
  const Outcome run = this->run({"tinyshakespeare", "--mirror", "http://127.0.0.1:" + serve()});
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_THAT(run.errors, HasSubstr("expected 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"));
}

TEST_F(FetchData, RefusesASetThatItDoesNotKnow) {
  const Outcome run = this->run({"mnist"});
  EXPECT_EQ(run.exit_code, 2) << run.output;
  EXPECT_THAT(run.errors, HasSubstr("cifar10"));
}

// A small collection in the original format: two topics in both training and test, one only in training, and documents
// with no topic or several.
TEST_F(FetchData, ConvertsReuters) {
  const auto document = [](const std::string& head, const std::string& topics, const std::string& text) {
    return "<REUTERS " + head + ">\n<TOPICS>" + topics + "</TOPICS>\n<TEXT>&#2;\n" + text +
           "\n&#3;</TEXT>\n</REUTERS>\n";
  };
  const std::string train = R"(TOPICS="YES" LEWISSPLIT="TRAIN")", test = R"(TOPICS="YES" LEWISSPLIT="TEST")";
  const std::string body = "<TITLE>GOLD &lt;AU> UP</TITLE><BODY>Gold rose; it's up.\n Reuter\n</BODY>";
  std::ofstream(folder_ / "reut2-000.sgm")
      << document(train, "<D>gold</D>", body) << document(train, "<D>wheat</D>", "wheat and wheat")
      << document(train, "<D>tin</D>", "tin") << document(train, "", "no topic")
      << document(train, "<D>gold</D><D>tin</D>", "two") << document(test, "<D>gold</D>", "gold zzz")
      << document(test, "<D>wheat</D>", "wheat")
      << document(R"(TOPICS="YES" LEWISSPLIT="NOT-USED")", "<D>gold</D>", "unused");
  Child tar({"tar", "-czf", (folder_ / "server/reuters.tar.gz").string(), "-C", folder_.string(), "reut2-000.sgm"});
  ASSERT_EQ(tar.wait(), 0) << tar.errors();
  const std::string address = "http://127.0.0.1:" + serve() + "/reuters.tar.gz";
  std::ofstream(folder_ / "table.json") << R"({"reuters": {"members": "\\.sgm$", "files": [[")" << address << R"(", ")"
                                        << sha256_hex(text_of(folder_ / "server/reuters.tar.gz")) << R"("]]}})";
  const Outcome run = this->run({"reuters", "--table", (folder_ / "table.json").string()});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("2 training and 2 test documents of 2 topics"));
  const fs::path made = folder_ / "data/reuters";
  EXPECT_EQ(text_of(made / "reuters_topics.txt"), "gold\nwheat\n");
  EXPECT_EQ(text_of(made / "reuters_vocab.txt"), "<pad>\n<start>\n<oov>\ngold\nup\nwheat\nand\nau\nit's\nrose\n");
  Child lines({"gzip", "-dc", (made / "reuters_train.jsonl.gz").string(), (made / "reuters_test.jsonl.gz").string()});
  ASSERT_EQ(lines.wait(), 0) << lines.errors();
  EXPECT_EQ(lines.output(), R"({"label":0,"tokens":[1,3,7,4,3,9,8,4]}
{"label":1,"tokens":[1,5,6,5]}
{"label":0,"tokens":[1,3,2]}
{"label":1,"tokens":[1,5]}
)");
}

}  // namespace
}  // namespace lockstep::testing
