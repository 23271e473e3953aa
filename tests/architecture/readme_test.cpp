// README's program is the example, word for word: what people copy is what was compiled and run.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace {

std::string read(const std::string& name) {
  std::ifstream file(std::string(LOCKSTEP_SOURCE_ROOT) + "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Readme, ItsProgramIsTheExample) {
  const std::string readme = read("README.md"), example = read("examples/hello_ddp.cpp");
  const std::string fence = "```cpp\n";
  const std::size_t begin = readme.find(fence);
  ASSERT_NE(begin, std::string::npos);
  const std::string program = readme.substr(begin + fence.size(), readme.find("```", begin + fence.size()) - begin - fence.size());
  EXPECT_GT(program.size(), 500u);
  EXPECT_NE(example.find(program), std::string::npos) << "README's program and examples/hello_ddp.cpp differ";
}

TEST(Readme, ItsLinksLeadSomewhere) {
  const std::string readme = read("README.md");
  int links = 0;
  for (std::size_t at = readme.find("]("); at != std::string::npos; at = readme.find("](", at + 2)) {
    const std::string target = readme.substr(at + 2, readme.find(')', at) - at - 2);
    if (target.rfind("http", 0) == 0 || target[0] == '#') continue;
    EXPECT_TRUE(std::ifstream(std::string(LOCKSTEP_SOURCE_ROOT) + "/" + target).good()) << target;
    ++links;
  }
  EXPECT_GT(links, 8);
}

}  // namespace
