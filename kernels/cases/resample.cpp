#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

Shape images(const Resample2dShape& s) { return {s.batch, s.in_height, s.in_width, s.channels}; }
Shape results(const Resample2dShape& s) { return {s.batch, s.out_height, s.out_width, s.channels}; }

Resample2dShape resampled(Index batch, Index height, Index width, Index channels, Index out_height, Index out_width,
                          ResampleRule rule) {
  const auto scale = [&](Index in, Index out) {
    if (rule != ResampleRule::kLinearCorners) return static_cast<float>(in) / static_cast<float>(out);
    return out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0F;
  };
  return {batch, height, width, channels, out_height, out_width, scale(height, out_height), scale(width, out_width),
          rule};
}

std::string name_of(const Resample2dShape& s) {
  return fmt::format("{} images of {} x {} x {} to {} x {}, rule {}", s.batch, s.in_height, s.in_width, s.channels,
                     s.out_height, s.out_width, static_cast<int>(s.rule));
}

// Sizes that grow, shrink and stay, also to and from 1.
std::vector<Resample2dShape> resample_shapes() {
  std::vector<Resample2dShape> shapes;
  for (const ResampleRule rule :
       {ResampleRule::kNearest, ResampleRule::kLinear, ResampleRule::kLinearCorners, ResampleRule::kMean}) {
    shapes.push_back(resampled(2, 4, 5, 3, 8, 10, rule));
    shapes.push_back(resampled(1, 7, 9, 16, 3, 4, rule));
    shapes.push_back(resampled(3, 5, 5, 1, 7, 12, rule));
    shapes.push_back(resampled(1, 1, 13, 17, 1, 6, rule));
    shapes.push_back(resampled(2, 6, 1, 2, 1, 1, rule));
    shapes.push_back(resampled(1, 3, 4, 64, 3, 4, rule));
    shapes.push_back(resampled(0, 3, 4, 2, 5, 5, rule));
    Resample2dShape by_factor = resampled(1, 5, 7, 4, 11, 16, rule);  // of a factor whose sizes are rounded down
    if (rule == ResampleRule::kNearest || rule == ResampleRule::kLinear)
      by_factor.scale_height = by_factor.scale_width = 1 / 2.3F, shapes.push_back(by_factor);
  }
  return shapes;
}

Bound resample_bound(const Cases& cases, bool accumulate = false) {
  const Bound bound = rounded(cases.type, accumulate);
  return {.value = bound.value, .largest = 5e-6F, .absolute = bound.absolute};
}

Work resample_forward(const Resample2dShape& s) {
  return [=](Bench& b) {
    const InputView x = b.in(images(s), uniform(images(s).count(), 1));
    const OutputView y = b.out(results(s), uniform(results(s).count(), 2));
    return [=, &b] { b.kernels.resample2d(s, x, y, b.stream()); };
  };
}

Work resample_gradient(const Resample2dShape& s, bool accumulate) {
  return [=](Bench& b) {
    const InputView y_grad = b.in(results(s), uniform(results(s).count(), 1));
    const OutputView x_grad = b.out(images(s), uniform(images(s).count(), 2), accumulate);
    return [=, &b] { b.kernels.resample2d_backward(s, y_grad, x_grad, b.stream()); };
  };
}

struct TimedResample {
  std::string name;
  Resample2dShape shape;
};
std::vector<TimedResample> timed_resamples(const Cases& cases) {
  const Index batch = cases.sizes.batch / 8;
  return {{"upsample nearest", resampled(batch, 28, 28, 64, 56, 56, ResampleRule::kNearest)},
          {"upsample bilinear", resampled(batch, 28, 28, 64, 56, 56, ResampleRule::kLinear)},
          {"adaptive average pool", resampled(batch, 28, 28, 64, 5, 5, ResampleRule::kMean)}};
}
Row row_of(const Cases& cases, const TimedResample& timed, const char* direction) {
  const auto moved = static_cast<double>(images(timed.shape).count() + results(timed.shape).count());
  return {.name = timed.name + direction, .bytes = cases.element_bytes() * moved};
}

}  // namespace

void resample2d(Cases& cases) {
  for (const Resample2dShape& s : resample_shapes())
    cases.test(name_of(s), {resample_bound(cases)}, resample_forward(s));
  for (const TimedResample& timed : timed_resamples(cases))
    cases.row(row_of(cases, timed, " forward"), resample_forward(timed.shape));
}

void resample2d_backward(Cases& cases) {
  for (const Resample2dShape& s : resample_shapes())
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, {}", name_of(s), accumulate), {resample_bound(cases, accumulate)},
                 resample_gradient(s, accumulate));
  for (const TimedResample& timed : timed_resamples(cases))
    cases.row(row_of(cases, timed, " backward"), resample_gradient(timed.shape, false));
}

}  // namespace lockstep::testing::cases
