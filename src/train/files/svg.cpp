#include "src/train/files/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "lockstep/core/error.h"
#include "src/train/files/xml_text.h"

namespace lockstep::train::svg {

namespace {

constexpr double kCharacter = 7.4;  // px of a character at 13 px

// Colors that readers who see few colors tell apart (Okabe and Ito, 2008; without the yellow, which is too light on
// white). Black becomes white on a dark ground.
constexpr const char* kStyle = R"(<style>
.ground { fill: #ffffff } .ink { fill: #1f2328 } .quiet { fill: #59636e }
.frame { stroke: #59636e } .grid { stroke: #cccccc } .faint { stroke: #eeeeee }
.c0 { color: #0072b2 } .c1 { color: #d55e00 } .c2 { color: #009e73 } .c3 { color: #cc79a7 }
.c4 { color: #000000 } .c5 { color: #e69f00 } .c6 { color: #56b4e9 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .ink { fill: #e6edf3 } .quiet { fill: #9198a1 }
.frame { stroke: #9198a1 } .grid { stroke: #3d444d } .faint { stroke: #21262d }
.c0 { color: #3d9fdc } .c4 { color: #ffffff }
}
</style>
)";

}  // namespace

std::string color_class(std::size_t index) { return "c" + std::to_string(index % kColors); }

std::string text_at(double x, double y, const std::string& anchor, const std::string& text, const std::string& more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     xml_text(text));
}

double text_width(const std::string& text) {
  const auto starts_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return kCharacter * static_cast<double>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string document(double width, double height, const std::string& body) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
             "{1:.0f}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"13\" class=\"ink\">\n"
             "{2}<rect width=\"{0:.0f}\" height=\"{1:.0f}\" class=\"ground\"/>\n",
             width, height, kStyle) +
         body + "</svg>\n";
}

void write(const std::string& path, const std::string& document) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << document;
  file.close();
  if (!file)
    throw FileError("{}: the plot cannot be written: {}", path, errno != 0 ? std::strerror(errno) : "unknown reason");
}

}  // namespace lockstep::train::svg
