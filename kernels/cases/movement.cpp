// Copies of elements: the same bits as the plain kernels.
#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct NamedCopy {
  std::string name;
  StridedCopy copy;
  Shape in, out;
};

NamedCopy permuted(const Shape& x, const std::vector<std::size_t>& dims) {
  std::vector<Index> extents;
  StridedCopy copy;
  for (const std::size_t dim : dims) {
    copy.in_strides[extents.size()] = strides_of(x)[dim];
    extents.push_back(x[dim]);
  }
  copy.extents = Shape(std::span<const Index>(extents));
  copy.out_strides = strides_of(copy.extents);
  return {fmt::format("{} transposed to {}", x.text(), copy.extents.text()), copy, x, copy.extents};
}

// Elements between the copied ones must not change.
NamedCopy part(const Shape& in, const Shape& extents, const Shape& out, Index in_offset, Index out_offset, Index step) {
  StridedCopy copy{extents, strides_of(in), strides_of(out), in_offset, out_offset};
  copy.in_strides[0] *= step;
  return {fmt::format("{} of {} into {}, step {}", extents.text(), in.text(), out.text(), step), copy, in, out};
}

std::vector<NamedCopy> copies() {
  std::vector<NamedCopy> all = {permuted({5, 7}, {1, 0}),
                                permuted({67, 130}, {1, 0}),
                                permuted({3, 40, 33}, {0, 2, 1}),
                                permuted({3, 40, 33}, {2, 1, 0}),
                                permuted({3, 40, 33}, {1, 0, 2}),
                                permuted({2, 8, 4, 16}, {0, 2, 1, 3}),
                                permuted({2, 3, 2, 3, 2, 3}, {5, 3, 1, 0, 2, 4}),
                                permuted({0, 3}, {1, 0}),
                                permuted({}, {}),
                                part({10}, {4}, {6}, 2, 1, 2),
                                part({8, 64}, {8, 32}, {8, 32}, 16, 0, 1),
                                part({8, 30}, {8, 7}, {8, 50}, 9, 3, 1),
                                part({6, 4, 5}, {3, 2, 5}, {5, 4, 5}, 4, 23, 2)};
  all.push_back({"a row backwards", {{9}, {-1}, {1}, 8, 0}, {9}, {9}});
  all.push_back({"a row written backwards", {{9}, {1}, {-1}, 0, 8}, {9}, {9}});
  all.push_back(
      {"columns written backwards", {{3, 40, 33}, {1320, 33, 1}, {1320, 33, -1}, 0, 32}, {3, 40, 33}, {3, 40, 33}});
  all.push_back({"columns backwards", {{3, 40, 33}, {1320, 33, -1}, {1320, 33, 1}, 32, 0}, {3, 40, 33}, {3, 40, 33}});
  all.push_back({"rows backwards", {{3, 40, 32}, {1280, -32, 1}, {1280, 32, 1}, 39 * 32, 0}, {3, 40, 32}, {3, 40, 32}});
  all.push_back({"a row repeated", {{20, 33}, {0, 1}, strides_of({20, 33})}, {33}, {20, 33}});
  all.push_back({"a scalar repeated", {{70001}, {}, strides_of({70001})}, {}, {70001}});
  return all;
}

Work copy_floats(const NamedCopy& of, bool accumulate) {
  return [=](Bench& b) {
    const InputView in = b.in(of.in, uniform(of.in.count(), 1));
    const OutputView out = b.out(of.out, uniform(of.out.count(), 2), accumulate);
    return [=, &b] { b.kernels.copy_strided(of.copy, in, out, b.stream()); };
  };
}

template <typename T> Work copy_others(const NamedCopy& of) {
  return [=](Bench& b) {
    std::vector<T> values(static_cast<std::size_t>(of.in.count()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i * 5 + 1);
    const InputView in(b.plain_in(values), of.in);
    const OutputView out(b.plain_out(std::vector<T>(static_cast<std::size_t>(of.out.count()), T{3})), of.out);
    return [=, &b] { b.kernels.copy_strided(of.copy, in, out, b.stream()); };
  };
}

struct Lookup {
  std::size_t dim;
  Shape x, index;
};

const std::vector<Lookup>& lookups() {
  static const std::vector<Lookup> kLookups = {{0, {7}, {20}},
                                               {1, {5, 9}, {5, 3}},
                                               {0, {5, 9}, {12, 9}},
                                               {1, {3, 4, 6}, {2, 9, 5}},
                                               {2, {3, 4, 60}, {3, 4, 1}},
                                               {1, {3, 4}, {3, 0}},
                                               {0, {4, 0}, {4, 0}},
                                               {1, {300, 10}, {300, 1}}};
  return kLookups;
}

// If `outside`, every seventh position is outside.
std::vector<std::int64_t> places(const Lookup& of, bool outside) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(of.index.count()));
  const std::int64_t bound = of.x[of.dim];
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::int64_t>(i * 11) % bound;
    if (outside && i % 7 == 3) values[i] = i % 2 == 0 ? bound : -1;
  }
  return values;
}

Work look_up(const Lookup& of, bool outside) {
  return [=](Bench& b) {
    const InputView x = b.in(of.x, uniform(of.x.count(), 1)), index(b.plain_in(places(of, outside)), of.index);
    const OutputView y = b.out(of.index, uniform(of.index.count(), 2));
    return [=, &b] { b.kernels.gather(of.dim, x, index, y, b.stream()); };
  };
}

Work add_back(const Lookup& of, bool outside, bool accumulate) {
  return [=](Bench& b) {
    const InputView index(b.plain_in(places(of, outside)), of.index),
        y_grad = b.in(of.index, whole_numbers(of.index.count(), 3));
    const OutputView x_grad = b.out(of.x, whole_numbers(of.x.count(), 4), accumulate);
    return [=, &b] { b.kernels.gather_backward(of.dim, index, y_grad, x_grad, b.stream()); };
  };
}

// Places are distinct, or the last of several remains; the source has the index's shape, or is a scalar.
Work put_back(const Lookup& of, bool outside, bool scalar) {
  return [=](Bench& b) {
    const Shape source_shape = scalar ? Shape{} : of.index;
    const InputView index(b.plain_in(places(of, outside)), of.index),
        source = b.in(source_shape, uniform(source_shape.count(), 3));
    const OutputView y = b.out(of.x, uniform(of.x.count(), 4));
    return [=, &b] { b.kernels.scatter(of.dim, index, source, y, b.stream()); };
  };
}

}  // namespace

void copy_strided(Cases& cases) {
  for (const NamedCopy& of : copies())
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, {}", of.name, accumulate), {kExact}, copy_floats(of, accumulate));
  if (!cases.is_half())
    for (const NamedCopy& of : copies()) {
      cases.test(of.name + ", int64", {kExact}, copy_others<std::int64_t>(of));
      cases.test(of.name + ", uint8", {kExact}, copy_others<std::uint8_t>(of));
    }
  const Index n = cases.sizes.elements, rows = n / 1024;
  const double bytes = 2 * cases.element_bytes();
  cases.large_row("transpose to rows of 1024", bytes, copy_floats(permuted({1024, rows}, {1, 0}), false));
  cases.large_row("heads of 64, transposed", bytes,
                  copy_floats(permuted({n / 65536, 128, 8, 64}, {0, 2, 1, 3}), false));
  cases.large_row("a row repeated", cases.element_bytes(),
                  copy_floats({"", {{rows, 1024}, {0, 1}, strides_of({rows, 1024})}, {1024}, {rows, 1024}}, false));
}

void gather(Cases& cases) {
  for (const Lookup& of : lookups())
    for (const bool outside : {false, true})
      cases.test(fmt::format("{} by {} along {}, {}", of.x.text(), of.index.text(), of.dim, outside), {kExact},
                 look_up(of, outside));
  const Index rows = cases.sizes.elements / 256;
  cases.large_row("gather half of rows of 256", (2 * cases.element_bytes() + 8) / 2,
                  look_up({1, {rows, 256}, {rows, 128}}, false));
}

void gather_backward(Cases& cases) {
  for (const Lookup& of : lookups())
    for (const bool outside : {false, true})
      for (const bool accumulate : {false, true})
        cases.test(fmt::format("{} by {} along {}, {}, {}", of.x.text(), of.index.text(), of.dim, outside, accumulate),
                   {kExact}, add_back(of, outside, accumulate));
  const Index rows = cases.sizes.elements / 256;
  cases.large_row("gather backward, half of rows of 256", (3 * cases.element_bytes() + 8) / 2,
                  add_back({1, {rows, 256}, {rows, 128}}, false, false));
}

void scatter(Cases& cases) {
  for (const Lookup& of : lookups())
    for (const bool outside : {false, true})
      for (const bool scalar : {false, true})
        cases.test(fmt::format("{} by {} along {}, {}, {}", of.x.text(), of.index.text(), of.dim, outside, scalar),
                   {kExact}, put_back(of, outside, scalar));
  const Index rows = cases.sizes.elements / 256;
  cases.large_row("scatter to half of rows of 256", (2 * cases.element_bytes() + 8) / 2,
                  put_back({1, {rows, 256}, {rows, 128}}, false, false));
}

}  // namespace lockstep::testing::cases
