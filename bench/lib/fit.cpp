#include "bench/lib/fit.h"

#include <algorithm>
#include <cmath>

namespace lockstep::bench {

std::optional<Fit> fit_line(const std::vector<Point>& points) {
  // Normal equations of sum w (us - alpha - beta bytes)^2 with w = 1 / us^2.
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const Point& point : points) {
    if (point.us <= 0) continue;
    const double weight = 1 / (point.us * point.us);
    w += weight;
    wx += weight * point.bytes;
    wxx += weight * point.bytes * point.bytes;
    wy += weight * point.us;
    wxy += weight * point.bytes * point.us;
  }
  const double determinant = w * wxx - wx * wx;
  if (!(determinant > 1e-12 * w * wxx)) return std::nullopt;
  double beta = (w * wxy - wx * wy) / determinant, alpha = (wy - beta * wx) / w;
  if (alpha < 0) {  // only large messages: the latency is lost in the noise
    alpha = 0;
    beta = wxy / wxx;
  }
  if (!(beta > 0)) return std::nullopt;
  double worst = 0;
  for (const Point& point : points)
    if (point.us > 0) worst = std::max(worst, std::fabs(alpha + beta * point.bytes - point.us) / point.us);
  return Fit{alpha, 1e-3 / beta, 100 * worst};
}

}  // namespace lockstep::bench
