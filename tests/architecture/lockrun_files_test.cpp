// lockrun's man page and its bash completion have the flags that `lockrun --help` has.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tests/architecture/command.h"
#include "tests/support/page.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

const std::string kCompletion = LOCKSTEP_SOURCE_ROOT "/launcher/lockrun.bash";
const std::string kManPage = LOCKSTEP_BUILD_ROOT "/launcher/lockrun.1";

// "-n" and "--nnodes" of a text; `pattern` has them in its first group.
std::set<std::string> flags_in(const std::string& text, const std::string& pattern) {
  std::set<std::string> flags;
  for (const auto& match : find_matches(text, pattern))
    for (const auto& flag : find_matches(match[1], "(?:^|[ ,'])(--?[a-z][a-z-]*)")) flags.insert(flag[1]);
  return flags;
}

std::set<std::string> flags_of_help() {
  const CommandEnd help = run_command(LOCKRUN " --help");
  EXPECT_EQ(help.exit_code, 0) << help.output;
  const auto flags = flags_in(help.output, "\n( +(?:-[a-z], )?--[a-z-]+)");
  EXPECT_GE(flags.size(), 12u) << help.output;
  return flags;
}

TEST(LockrunManPage, HasTheFlags) {
  const std::string page = replace_matches(replace_matches(text_of_file(kManPage), "\\\\-", "-"), "\" ?", "");
  const std::string options =
      page.substr(page.find(".SH OPTIONS"), page.find(".SH ENVIRONMENT") - page.find(".SH OPTIONS"));
  EXPECT_EQ(flags_in(options, "\n[.]TP\n[.]BR? (.*)"), flags_of_help());
  EXPECT_NE(page.find("Lockstep " LOCKSTEP_PROJECT_VERSION), std::string::npos);
}

TEST(LockrunManPage, IsWellFormed) {
  if (run_command("sh -c 'command -v mandoc'").exit_code != 0) GTEST_SKIP() << "mandoc is not installed";
  const CommandEnd checked = run_command("mandoc -T lint -W warning " + kManPage);
  EXPECT_EQ(checked.exit_code, 0) << checked.output;
}

TEST(LockrunCompletion, HasTheFlags) {
  const CommandEnd read = run_command("bash -n " + kCompletion);
  EXPECT_EQ(read.exit_code, 0) << read.output;
  EXPECT_EQ(flags_in(text_of_file(kCompletion), "(?:with_value|alone)='([^']*)'"), flags_of_help());
}

// The completions that bash offers at the end of a line; words in order, separated by one space.
std::string offered(const std::string& line) {
  const bool new_word = line.back() == ' ';
  const CommandEnd end = run_command(
      fmt::format("bash -c '. /usr/share/bash-completion/bash_completion; . {}; COMP_WORDS=({} {}); "
                  "COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
                  "COMP_LINE=\"{}\"; COMP_POINT=${{#COMP_LINE}}; _lockrun 2>/dev/null; echo ${{COMPREPLY[@]}}'",
                  kCompletion, line, new_word ? "\"\"" : "", line));
  EXPECT_EQ(end.exit_code, 0) << end.output;
  return end.output.substr(0, end.output.find('\n'));
}

TEST(LockrunCompletion, OffersFlagsValuesAndTheProgram) {
  if (run_command("test -e /usr/share/bash-completion/bash_completion").exit_code != 0)
    GTEST_SKIP() << "bash-completion is not installed";
  EXPECT_EQ(offered("lockrun --nn"), "--nnodes");
  EXPECT_EQ(offered("lockrun -n 2 --no-"), "--no-prefix --no-fold --no-terminal --no-bind");
  EXPECT_EQ(offered("lockrun -n "), "auto cpu gpu");
  EXPECT_EQ(offered("lockrun -n 2 --gpus n"), "none");
  EXPECT_EQ(offered("lockrun diagn"), "diagnose");
  EXPECT_EQ(offered("lockrun topology "), "--json");
  EXPECT_NE(offered("lockrun -n 2 /usr/bin/en").find("/usr/bin/env"), std::string::npos) << "programs";
  EXPECT_EQ(offered("lockrun -n 2 env --nn"), "") << "the program's own flags are not lockrun's";
}

}  // namespace
}  // namespace lockstep::testing
