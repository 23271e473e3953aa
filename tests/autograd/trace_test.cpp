// A trace sees every operator call of its thread, also those that record nothing for backward.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "src/autograd/engine/trace.h"

namespace lockstep {
namespace {

std::vector<std::string> names_of(const Trace& trace) {
  std::vector<std::string> names;
  for (const Trace::Step& step : trace.steps()) names.push_back(step.node->name());
  return names;
}

TEST(Trace, SeesConstantsIntegersAndMasks) {
  const Trace trace;
  const NoGrad no_grad;
  const Tensor x = Tensor::full({2, 3}, 1), ids = Tensor::zeros({2, 3}, DType::kInt64);
  const Tensor mask = x > 0, doubled = x * 2;
  const Tensor y = where(mask, doubled, x);
  reshape(ids, {6});
  EXPECT_EQ(names_of(trace), (std::vector<std::string>{"compare", "scale", "where", "reshape"}));
  const Trace::Step& last = trace.steps()[2];
  EXPECT_TRUE(last.result.is_same(y));
  EXPECT_EQ(Trace::saved_of(last)[0].dtype(), DType::kUInt8);
  EXPECT_EQ(std::get<double>(trace.steps()[1].node->attributes()->at("factor")), 2);
}

TEST(Trace, KeepsTheVersionsThatWereRead) {
  const Trace trace;
  const Tensor x = Tensor::full({3}, 1), y = x * 2;
  const std::uint64_t version = trace.steps()[0].input_versions[0];
  EXPECT_EQ(version, x.version());
  x.fill(4);
  EXPECT_NE(version, x.version());
}

TEST(Trace, EndsWithItsScope) {
  const Tensor x = Tensor::full({3}, 1);
  {
    const Trace outer;
    {
      const Trace inner;
      relu(x);
      EXPECT_EQ(inner.steps().size(), 1U);
    }
    relu(x);
    EXPECT_EQ(outer.steps().size(), 1U) << "the innermost trace alone";
  }
  EXPECT_EQ(node_of(relu(x)), nullptr);
  EXPECT_EQ(node_of(x > 0), nullptr);
  const Tensor leaf = Tensor::full({3}, 1);
  require_grad(leaf);
  EXPECT_EQ(node_of(leaf > 0), nullptr) << "a comparison has no gradient";
}

}  // namespace
}  // namespace lockstep
