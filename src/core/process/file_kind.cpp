#include "src/core/process/file_kind.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace lockstep {

namespace {

bool begins_with(std::string_view text, std::string_view lower_case) {
  return text.size() >= lower_case.size() &&
         std::equal(lower_case.begin(), lower_case.end(), text.begin(), [](char wanted, char got) {
           return wanted == static_cast<char>(std::tolower(static_cast<unsigned char>(got)));
         });
}

}  // namespace

std::string mistaken_download(std::span<const std::byte> begin) {
  std::string_view text(reinterpret_cast<const char*>(begin.data()), std::min<std::size_t>(begin.size(), 1024));
  if (begins_with(text, "version https://git-lfs.github.com/spec/"))
    return " It is a Git LFS pointer, not the file itself: `git lfs pull` in its repository downloads it.";
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (begins_with(text, "<!doctype html") || begins_with(text, "<html"))
    return " It is a web page (HTML), such as an error or login page that was saved in place of the file: download it "
           "again.";
  return "";
}

}  // namespace lockstep
