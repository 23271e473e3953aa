// Elementwise operators compute the plain kernels' bits, also on arrays that are aligned only to their elements.
#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"

namespace lockstep::testing::cases {

namespace {

using OfCount = std::function<Work(Index count, bool flag, Place place)>;

void on_all_counts(Cases& cases, const OfCount& work) {
  for (const Index count : kCounts)
    for (const bool flag : {false, true})
      for (const Place place : {Place::kAligned, Place::kOneElementOff})
        cases.test(fmt::format("{} elements, {}{}", count, flag, place == Place::kAligned ? "" : ", one element off"),
                   {kExact}, work(count, flag, place));
}

Floats special_values(Index count) {
  const Floats special = {0,     -0.0F,    1,       65504,       65519,       65520,     1e-8F, 6e-8F,
                          1e30F, -6.1e-5F, 3.4e38F, 1.00390625F, 1.01171875F, kInfinity, kNan};
  Floats values = uniform(count, 1);
  if (values.size() > special.size()) std::copy(special.begin(), special.end(), values.begin());
  return values;
}

}  // namespace

void fill(Cases& cases) {
  if (cases.is_half()) return;  // float32
  on_all_counts(cases, [](Index count, bool, Place place) {
    return [=](Bench& b) {
      const OutputView out = b.out({count}, uniform(count, 3), false, place);
      return [=, &b] { b.kernels.fill(out, -1.5F, b.stream()); };
    };
  });
  cases.large_row("fill", 4, [n = cases.sizes.elements](Bench& b) {
    const OutputView out = b.out({n}, Floats(static_cast<std::size_t>(n)));
    return [=, &b] { b.kernels.fill(out, 0.5F, b.stream()); };
  });
}

void convert(Cases& cases) {
  for (const DType to : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    on_all_counts(cases, [to](Index count, bool accumulate, Place place) {
      return [=](Bench& b) {
        const InputView in = b.in({count}, special_values(count));
        const OutputView out = b.out_of(to, {count}, uniform(count, 2), accumulate, place);
        return [=, &b] { b.kernels.convert(in, out, b.stream()); };
      };
    });
  const DType to = cases.is_half() ? DType::kFloat32 : DType::kBFloat16;
  cases.large_row(fmt::format("convert to {}", name_of(to)), 6, [to, n = cases.sizes.elements](Bench& b) {
    const InputView in = b.in({n}, uniform(n, 1));
    const OutputView out = b.out_of(to, {n}, uniform(n, 2));
    return [=, &b] { b.kernels.convert(in, out, b.stream()); };
  });
}

void add(Cases& cases) {
  on_all_counts(cases, [](Index count, bool in_place, Place place) {
    return [=](Bench& b) {
      const InputView x = b.in({count}, uniform(count, 1), place), y = b.in({count}, uniform(count, 2));
      const OutputView out = b.out({count}, uniform(count, 3), false, in_place ? place : Place::kAligned);
      return [=, &b] { b.kernels.add(in_place ? InputView(out) : y, x, out, b.stream()); };
    };
  });
  const double bytes = 3 * cases.element_bytes();
  cases.large_row("add", bytes, [n = cases.sizes.elements](Bench& b) {
    const InputView x = b.in({n}, uniform(n, 1)), y = b.in({n}, uniform(n, 2));
    const OutputView out = b.out({n}, uniform(n, 3));
    return [=, &b] { b.kernels.add(x, y, out, b.stream()); };
  });
  cases.large_row("accumulate", bytes, [n = cases.sizes.elements](Bench& b) {
    const InputView x = b.in({n}, uniform(n, 1));
    const OutputView sum = b.out({n}, uniform(n, 2));
    return [=, &b] { b.kernels.add(sum, x, sum, b.stream()); };
  });
}

void scale(Cases& cases) {
  on_all_counts(cases, [](Index count, bool accumulate, Place place) {
    return [=](Bench& b) {
      const InputView x = b.in({count}, uniform(count, 1), place);
      const OutputView out = b.out({count}, uniform(count, 3), accumulate),
                       same = b.out({count}, uniform(count, 4), false, place);
      return [=, &b] {
        b.kernels.scale(x, 0.3F, out, b.stream());
        b.kernels.scale(same, 0.3F, same, b.stream());
      };
    };
  });
  cases.large_row("scale", 2 * cases.element_bytes(), [n = cases.sizes.elements](Bench& b) {
    const InputView x = b.in({n}, uniform(n, 1));
    const OutputView out = b.out({n}, uniform(n, 2));
    return [=, &b] { b.kernels.scale(x, 0.5F, out, b.stream()); };
  });
}

void scale_by(Cases& cases) {
  if (cases.is_half()) return;  // float32
  on_all_counts(cases, [](Index count, bool accumulate, Place place) {
    return [=](Bench& b) {
      const InputView x = b.in({count}, uniform(count, 1), place), factor = b.in({}, {0.3F});
      const OutputView out = b.out({count}, uniform(count, 3), accumulate, place);
      return [=, &b] { b.kernels.scale_by(x, factor, out, b.stream()); };
    };
  });
  cases.large_row("scale by", 8, [n = cases.sizes.elements](Bench& b) {
    const InputView x = b.in({n}, uniform(n, 1)), factor = b.in({}, {0.5F});
    const OutputView out = b.out({n}, uniform(n, 2));
    return [=, &b] { b.kernels.scale_by(x, factor, out, b.stream()); };
  });
}

void relu(Cases& cases) {
  on_all_counts(cases, [](Index count, bool in_place, Place place) {
    return [=](Bench& b) {
      const InputView x = b.in({count}, uniform(count, 1), place);
      const OutputView y = b.out({count}, uniform(count, 3), false, place);
      return [=, &b] { b.kernels.relu(in_place ? InputView(y) : x, y, b.stream()); };
    };
  });
  cases.test("NaN values, in place", {kExact}, [](Bench& b) {
    Floats values = uniform(41, 1);
    values[3] = kNan, values[40] = kNan, values[5] = -kInfinity;
    const OutputView x = b.out({41}, values);
    return [=, &b] { b.kernels.relu(x, x, b.stream()); };
  });
  cases.large_row("relu", 2 * cases.element_bytes(), [n = cases.sizes.elements](Bench& b) {
    const InputView x = b.in({n}, uniform(n, 1));
    const OutputView y = b.out({n}, uniform(n, 2));
    return [=, &b] { b.kernels.relu(x, y, b.stream()); };
  });
}

void relu_backward(Cases& cases) {
  const auto on = [](Index count, Place place) {
    return [=](Bench& b) {
      const InputView y = b.in({count}, uniform(count, 1), place);
      const OutputView grad = b.out({count}, uniform(count, 3), false, place);
      return [=, &b] { b.kernels.relu_backward(y, grad, b.stream()); };
    };
  };
  on_all_counts(cases, [on](Index count, bool, Place place) { return on(count, place); });
  const double bytes = 3 * cases.element_bytes();
  for (const auto& [name, size] : {std::pair("relu1 backward", 24), std::pair("relu2 backward", 12)}) {
    const Index count = cases.sizes.batch * size * size * 64;
    cases.row({.name = name, .bytes = bytes * static_cast<double>(count)}, on(count, Place::kAligned));
  }
  cases.large_row("relu backward", bytes, on(cases.sizes.elements, Place::kAligned));
}

}  // namespace lockstep::testing::cases
