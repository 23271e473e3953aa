// Parts of SVG figures, which need no other file and are readable on a light and on a dark background.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::train::svg {

// CSS classes of a figure: `ink` and `quiet` fill texts; `frame`, `grid` and `faint` are strokes.
// c0, c1, ... set `color`, which shapes use as currentColor.
inline constexpr std::size_t kColors = 7;
std::string color_class(std::size_t index);

// `anchor`: start, middle or end. `more`: further attributes, each with a space in front.
std::string text_at(double x, double y, const std::string& anchor, const std::string& text,
                    const std::string& more = "");
double text_width(const std::string& text);  // an estimate for 13 px

// A file with the background, the colors and `body`.
std::string document(double width, double height, const std::string& body);
// Throws FileError with path and reason when the file cannot be written.
void write(const std::string& path, const std::string& document);

}  // namespace lockstep::train::svg
