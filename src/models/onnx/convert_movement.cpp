#include <cstdlib>
#include <limits>

#include "src/models/onnx/converters.h"

namespace lockstep::onnx {

namespace {

constexpr std::int64_t kToTheEnd = std::numeric_limits<std::int64_t>::max();

// A dimension of which all is kept has no entry.
void convert_slice(Conversion& c) {
  const Extents from = c.extents(0), to = c.result_extents();
  const std::vector<std::int64_t> all_starts = c.integers("starts"), all_steps = c.integers("steps");
  std::vector<std::int64_t> starts, ends, dims, steps;
  for (std::size_t d = 0; d < all_starts.size(); ++d) {
    const std::int64_t start = all_starts[d], step = all_steps[d];
    if (start == 0 && (step == 1 || (from[d].is_static() && from[d].fixed <= 1)) && from[d] == to[d]) continue;
    std::int64_t end = 0;
    if (to[d].is_static()) {
      end = to[d].fixed == 0 ? start : start + (to[d].fixed - 1) * std::min(step, kToTheEnd / 2 / to[d].fixed) + 1;
    } else {
      const bool reaches_the_end =
          step == 1 && from[d].per_sample == to[d].per_sample && from[d].fixed - start == to[d].fixed;
      if (!reaches_the_end) c.refuse("its end depends on the number of samples");
      end = kToTheEnd;
    }
    starts.push_back(start), ends.push_back(end), steps.push_back(step);
    dims.push_back(static_cast<std::int64_t>(d));
  }
  if (dims.empty()) return c.result(c.to.add("Identity", {c.in(0)}));
  c.result(c.to.add("Slice", {c.in(0), c.to.ints(starts), c.to.ints(ends), c.to.ints(dims), c.to.ints(steps)}));
}

void convert_flip(Conversion& c) {
  const std::vector<std::int64_t> dims = c.integers("dims");
  if (dims.empty()) return c.result(c.to.add("Identity", {c.in(0)}));
  const std::vector<std::int64_t> minus_one(dims.size(), -1);
  const std::vector<std::int64_t> before_first(dims.size(), std::numeric_limits<std::int64_t>::min());
  c.result(c.to.add("Slice",
                    {c.in(0), c.to.ints(minus_one), c.to.ints(before_first), c.to.ints(dims), c.to.ints(minus_one)}));
}

// The slices before `split` and those from there on change places; a negative number counts from the end.
void convert_roll(Conversion& c) {
  const std::int64_t dim = c.integer("dim"), shift = c.integer("shift");
  const Extent extent = c.extents(0)[static_cast<std::size_t>(dim)];
  if (!extent.is_static() && std::abs(shift) > 1)
    c.refuse("it moves samples by more than 1, which depends on the number of samples");
  const std::int64_t split = extent.is_static() && extent.fixed > 0 ? -(shift % extent.fixed) : -shift;
  if (split == 0) return c.result(c.to.add("Identity", {c.in(0)}));
  const std::string along = c.to.ints({dim}), at = c.to.ints({split});
  const std::string last = c.to.add("Slice", {c.in(0), at, c.to.ints({kToTheEnd}), along});
  const std::string others = c.to.add("Slice", {c.in(0), c.to.ints({0}), at, along});
  c.result(c.to.add("Concat", {last, others}, {{"axis", dim}}));
}

void convert_pad(Conversion& c) {
  std::vector<std::int64_t> widths = c.integers("before");
  const std::vector<std::int64_t> after = c.integers("after");
  widths.insert(widths.end(), after.begin(), after.end());
  c.result(c.to.add("Pad", {c.in(0), c.to.ints(widths), c.to.number(c.number("value"))},
                    {{"mode", std::string("constant")}}));
}

}  // namespace

void convert_copy(Conversion& c) {
  if (c.op() == "slice") return convert_slice(c);
  if (c.op() == "flip") return convert_flip(c);
  if (c.op() == "roll") return convert_roll(c);
  if (c.op() == "pad") return convert_pad(c);
  if (c.op() == "permute") return c.result(c.to.transpose(c.in(0), c.integers("dims")));
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < c.inputs(); ++i) parts.push_back(c.in(i));
  c.result(c.to.add("Concat", parts, {{"axis", c.integer("dim")}}));
}

void convert_shape(Conversion& c) {
  if (c.op() == "reshape") return c.result(c.to.reshape(c.in(0), c.extents(0), c.result_extents()));
  c.result(c.to.expand(c.in(0), c.extents(0), c.result_extents()));
}

void convert_indexing(Conversion& c) {
  if (c.op() == "embedding") return c.result(c.to.add("Gather", {c.in(0), c.saved(0)}, {{"axis", std::int64_t{0}}}));
  const std::int64_t dim = c.integer("dim");
  if (c.op() == "index_select") return c.result(c.to.add("Gather", {c.in(0), c.saved(0)}, {{"axis", dim}}));
  if (c.op() == "gather") return c.result(c.to.add("GatherElements", {c.in(0), c.saved(0)}, {{"axis", dim}}));
  const std::string index = c.saved(0);
  std::string source;
  if (c.inputs() > 1)
    source = c.in(1);
  else
    source = c.to.expand(c.to.number(c.number("value")), {}, c.saved_extents(0));
  GraphBuilder::AttributeList attributes = {{"axis", dim}};
  if (c.op() == "scatter_add") attributes.emplace_back("reduction", std::string("add"));
  c.result(c.to.add("ScatterElements", {c.in(0), index, source}, attributes));
}

}  // namespace lockstep::onnx
