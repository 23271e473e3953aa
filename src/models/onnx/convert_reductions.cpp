#include <limits>
#include <tuple>

#include "src/models/onnx/converters.h"

namespace lockstep::onnx {

namespace {

bool keeps_dims(const Conversion& c) { return c.result_shape().dims() == c.shape(0).dims(); }

// The extremes of the middle one of the three dimensions in which the operator sees x, and their places.
void convert_extreme(Conversion& c, bool is_max) {
  const Extents lines = c.sizes("lines"), result = c.result_extents();
  const std::string x = c.to.reshape(c.in(0), c.extents(0), lines);
  const Extents reduced = {lines[0], lines[2]};
  const std::string values = c.to.reduce(is_max ? "ReduceMax" : "ReduceMin", x, {1}, false);
  c.result(c.to.reshape(values, reduced, result));
  const std::string places =
      c.to.add(is_max ? "ArgMax" : "ArgMin", {x}, {{"axis", std::int64_t{1}}, {"keepdims", std::int64_t{0}}});
  c.result(c.to.reshape(places, reduced, result), 1);
}

}  // namespace

void convert_reduction(Conversion& c) {
  if (c.op() == "prod") return c.result(c.to.reduce("ReduceProd", c.in(0), {1}, false));
  const std::vector<std::int64_t> dims = c.integers("dims");
  const char* name = c.op() == "sum" ? "ReduceSum" : c.op() == "mean" ? "ReduceMean" : "ReduceLogSumExp";
  std::string x = c.in(0);
  if (c.op() == "norm") {
    const float p = c.number("p");
    name = p == 1 ? "ReduceL1" : p == 2 ? "ReduceL2" : "ReduceMax";
    if (p == std::numeric_limits<float>::infinity()) x = c.to.add("Abs", {x});
  }
  c.result(c.to.reduce(name, x, dims, keeps_dims(c)));
}

void convert_statistics(Conversion& c) {
  const std::vector<std::int64_t> dims = c.integers("dims");
  const std::string x = c.in(0), offset = c.to.add("Sub", {x, c.to.reduce("ReduceMean", x, dims, true)});
  Extents reduced;
  const Extents all = c.extents(0);
  for (const std::int64_t dim : dims) reduced.push_back(all[static_cast<std::size_t>(dim)]);
  std::string divisor = c.to.count_of(reduced);
  if (const float correction = c.number("correction"); correction != 0)
    divisor = c.to.add("Max", {c.to.add("Sub", {divisor, c.to.number(correction)}), c.to.number(0)});
  const std::string squares = c.to.reduce("ReduceSum", c.to.add("Mul", {offset, offset}), dims, keeps_dims(c));
  const std::string variance = c.to.add("Div", {squares, divisor});
  c.result(c.op() == "var" ? variance : c.to.add("Sqrt", {variance}));
}

void convert_order(Conversion& c) {
  if (c.op() == "max" || c.op() == "min") return convert_extreme(c, c.op() == "max");
  const std::int64_t dim = c.integer("dim");
  if (c.op() == "cumsum") return c.result(c.to.add("CumSum", {c.in(0), c.to.integer(dim)}));
  const Extent kept = c.result_extents()[static_cast<std::size_t>(dim)];
  const std::vector<std::string> found = c.to.add_with_outputs(
      "TopK", {c.in(0), c.to.as_shape({kept})}, {{"axis", dim}, {"largest", c.integer("descending")}}, 2);
  c.result(found[0]);
  c.result(found[1], 1);
}

}  // namespace lockstep::onnx
