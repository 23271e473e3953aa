// The plot of a history: a panel for each value, below each other, over one axis of epochs.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/train/history.h"
#include "src/train/files/xml_text.h"

namespace lockstep::train {

namespace {

constexpr double kLeft = 70, kWidth = 560, kHeight = 180, kPanel = 250, kTop = 34, kRight = 130;
constexpr const char* kColors[] = {"#0072B2",
                                   "#D55E00"};  // told apart by readers who see few colors (Okabe and Ito, 2008)

struct Range {
  double low, high;
};

using Curve = std::pair<std::string, const std::vector<double>*>;

std::optional<Range> range_of(const std::vector<Curve>& curves) {
  std::optional<Range> range;
  for (const Curve& curve : curves)
    for (const double value : *curve.second) {
      if (!std::isfinite(value)) continue;
      range = range ? Range{std::min(range->low, value), std::max(range->high, value)} : Range{value, value};
    }
  return range;
}

// Steps of 1, 2 or 5 times a power of ten, some four to nine of them.
double step_of(const Range& range) {
  const double span = range.high - range.low, power = std::pow(10, std::floor(std::log10(span / 4)));
  for (const double times : {5.0, 2.0})
    if (span / (power * times) >= 4) return power * times;
  return power;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     xml_text(text));
}

class Panel {
 public:
  Panel(const std::vector<Curve>& curves, const Range& values, const std::vector<std::int64_t>& numbers, double top)
      : curves_(curves), numbers_(numbers), top_(top), range_(values) {
    if (!(range_.high - range_.low > 1e-12 * std::fabs(range_.high)))  // a constant: some room around it
      range_ = {range_.low - std::max(std::fabs(range_.low) * 0.1, 1e-6),
                range_.high + std::max(std::fabs(range_.high) * 0.1, 1e-6)};
  }

  std::string svg() const {
    std::string out = text_at(kLeft, top_ - 10, "start", curves_.front().first, R"( font-weight="bold")");
    out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888888\"/>\n", kLeft,
                       top_, kWidth, kHeight);
    const double step = step_of(range_);
    for (double mark = std::ceil(range_.low / step) * step; mark <= range_.high + step * 1e-9; mark += step) {
      out += fmt::format("<path d=\"M{:.1f} {:.1f}h{}\" stroke=\"#DDDDDD\"/>\n", kLeft, y(mark), kWidth);
      out += text_at(kLeft - 6, y(mark) + 4, "end", fmt::format("{:.4g}", std::fabs(mark) < step * 1e-9 ? 0 : mark));
    }
    for (std::size_t line = 0; line < numbers_.size(); line += 1 + (numbers_.size() - 1) / 12)
      out += text_at(x(line), top_ + kHeight + 16, "middle", std::to_string(numbers_[line]));
    for (std::size_t i = 0; i < curves_.size(); ++i) out += curve(i);
    return out;
  }

 private:
  double x(std::size_t line) const {
    return kLeft + 12 +
           (kWidth - 24) *
               (numbers_.size() > 1 ? static_cast<double>(line) / static_cast<double>(numbers_.size() - 1) : 0.5);
  }
  double y(double value) const {
    return top_ + kHeight - 8 - (kHeight - 16) * (value - range_.low) / (range_.high - range_.low);
  }

  std::string curve(std::size_t number) const {
    const std::vector<double>& values = *curves_[number].second;
    const char* const color = kColors[number % 2];
    std::string path, markers;
    bool joined = false;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool drawn = std::isfinite(values[i]);
      if (drawn) {
        const double at_x = x(i), at_y = y(values[i]);
        path += fmt::format("{}{:.1f} {:.1f}", joined ? "L" : "M", at_x, at_y);
        markers += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", at_x, at_y, color);
      }
      joined = drawn;
    }
    const double row = top_ + 14 + 18 * static_cast<double>(number);
    return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, color) + markers +
           fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", kLeft + kWidth + 16, row - 4,
                       color) +
           text_at(kLeft + kWidth + 26, row, "start", curves_[number].first);
  }

  const std::vector<Curve>& curves_;
  const std::vector<std::int64_t>& numbers_;  // of the epochs
  double top_;
  Range range_;
};

}  // namespace

std::string History::svg() const {
  if (numbers_.empty()) throw InvalidArgument("History::svg: nothing to plot: no epoch has ended");
  std::string panels;
  double top = kTop;
  for (const auto& column : columns_) {
    const bool of_validation = column.first.rfind("val_", 0) == 0;
    const auto find = [&](const std::string& name) {
      return std::find_if(columns_.begin(), columns_.end(), [&](const auto& each) { return each.first == name; });
    };
    if (of_validation && find(column.first.substr(4)) != columns_.end()) continue;  // in the panel of that one
    std::vector<Curve> curves = {{column.first, &column.second}};
    if (const auto validation = find("val_" + column.first); validation != columns_.end())
      curves.emplace_back(validation->first, &validation->second);
    const auto range = range_of(curves);
    if (!range) continue;  // no finite value
    panels += Panel(curves, *range, numbers_, top).svg();
    top += kPanel;
  }
  const double width = kLeft + kWidth + kRight, height = top - 20;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
             "{1:.0f}\" "
             "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#111111\">\n"
             "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n",
             width, height) +
         panels + text_at(kLeft + kWidth / 2, height - 10, "middle", "epoch") + "</svg>\n";
}

void History::plot(const std::string& path) const {
  const std::string text = svg();
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw FileError("{}: the plot cannot be written: {}", path, errno != 0 ? std::strerror(errno) : "unknown reason");
}

}  // namespace lockstep::train
