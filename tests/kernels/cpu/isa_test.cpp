// Loops that are compiled for several instruction sets compute the same bits with each: this program runs itself with
// LOCKSTEP_ISA and compares digests of the kernels' results. It also tries values of LOCKSTEP_ISA that are unknown or
// that this machine lacks.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <functional>

#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/crypto.h"
#include "lockstep/core/environment.h"
#include "tests/kernels/cpu/exact.h"
#include "tests/kernels/isa_names.h"
#include "tests/support/pattern.h"
#if LOCKSTEP_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Take = std::function<void(const Floats&)>;

// exp and similar functions, whose values and slopes take many steps, and the gradient of depthwise filters with 64
// channels plus six.
void take_functions(const KernelTable& kernels, const Take& take) {
  constexpr Index kCount = 3 * 9 * 9 * 70;
  Floats x = uniform(kCount, 5), y(kCount), grad(kCount), loss(1), filters(70 * 9);
  for (float& value : x) value *= 6;
  std::vector<UnaryOperation> operations = {{UnaryFunction::kPow, -3}, {UnaryFunction::kPow, 0.3F}};
  for (const UnaryFunctionInfo& info : kUnaryFunctions)
    operations.push_back({info.function, info.parameter, info.second});
  for (const UnaryOperation& operation : operations) {
    kernels.unary(operation, in(x), out(y), stream()), take(y);
    kernels.unary_backward(operation, in(x), in(y), out(grad), stream()), take(grad);
  }
  Floats bases = uniform(kCount, 8);
  for (float& base : bases) base = 2 + 1.9F * base;
  Floats mixed = bases, whole = x;  // with bases of both signs and zeros, which use other loops
  for (std::size_t i = 0; i < mixed.size(); i += 3)
    mixed[i] = i % 2 == 0 ? -mixed[i] : 0, whole[i] = std::trunc(whole[i]);
  for (const BinaryFunction power :
       {BinaryFunction::kPow, BinaryFunction::kPowBaseSlope, BinaryFunction::kPowExponentSlope}) {
    kernels.binary(power, in(bases), in(x), out(y), stream()), take(y);
    kernels.binary(power, in(mixed), in(whole), out(y), stream());
    for (float& value : y) value = std::isnan(value) ? 0 : value;  // NaN's bits may differ
    take(y);
  }
  kernels.unary({UnaryFunction::kPow, -1.5F}, in(bases), out(y), stream()), take(y);
  kernels.binary_cross_entropy_with_logits(in(x), in(uniform(kCount, 6)), true, {loss.data(), {}}, stream()),
      take(loss);
  Conv2dShape s;
  s.batch = 3, s.in_height = s.in_width = s.out_height = s.out_width = 9,
  s.in_channels = s.out_channels = s.groups = 70;
  s.kernel_height = s.kernel_width = 3, s.stride_height = s.stride_width = 1,
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = 1;
  const Shape images = {3, 9, 9, 70};
  kernels.conv2d_backward_weights(s, in(x, images), in(uniform(kCount, 7), images), out(filters, {70, 3, 3, 1}),
                                  OutputView(), stream());
  take(filters);
}

// Arrays that are shorter than a vector of some instruction sets and longer than one of others.
void take_short_arrays(const KernelTable& kernels, const Take& take) {
  const auto step = [&](Index count, unsigned seed) {
    Floats values = uniform(count, seed);
    for (float& value : values) value = 2.5F + 2 * value;
    return values;
  };
  for (Index count = 1; count <= 40; ++count) {
    const Floats a = step(count, 1), b = step(count, 2);
    Floats y(static_cast<std::size_t>(count)), grad = y;
    for (const UnaryFunctionInfo& info : kUnaryFunctions) {
      kernels.unary({info.function, info.parameter, info.second}, in(a), out(y), stream()), take(y);
      kernels.unary_backward({info.function, info.parameter, info.second}, in(a), in(b), out(grad), stream()),
          take(grad);
    }
    for (const BinaryFunction function : {BinaryFunction::kAdd, BinaryFunction::kSub, BinaryFunction::kMul,
                                          BinaryFunction::kDiv, BinaryFunction::kPow, BinaryFunction::kPowBaseSlope})
      kernels.binary(function, in(a), in(b), out(y), stream()), take(y);
    kernels.add(in(a), in(b), out(y), stream()), take(y);
    kernels.scale(in(a), 0.7F, out(y, {count}, true), stream()), take(y);
    kernels.relu(in(uniform(count, 3)), out(y), stream()), take(y);
    kernels.dropout({0.4F, 5, 6, count}, in(a), out(y), stream()), take(y);
    const Pool2dShape pool{1, 3, 3, count, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0};
    const Floats image = uniform(9 * count, 4);
    Floats maxima(static_cast<std::size_t>(4 * count));
    std::vector<std::uint16_t> argmax(maxima.size());
    kernels.max_pool2d(pool, in(image, {1, 3, 3, count}), out(maxima, {1, 2, 2, count}), argmax.data(), stream());
    take(maxima), take(Floats(argmax.begin(), argmax.end()));
  }
}

// Steps of recurrent layers, and images of another size.
void take_steps(const KernelTable& kernels, const Take& take) {
  constexpr Index kRows = 3, kWidth = 70;
  const Shape state = {kRows, kWidth}, three = {kRows, 3 * kWidth}, four = {kRows, 4 * kWidth};
  const Floats a = uniform(four.count(), 1), b = uniform(four.count(), 2), before = uniform(state.count(), 3);
  Floats gates = uniform(four.count(), 4), h(before.size()), c(before.size()), grad(a.size()), other(a.size());
  kernels.lstm_step(0, in(a, four), in(before, state), in(before, state), {}, out(gates, four), out(h, state),
                    out(c, state), stream());
  take(gates), take(h), take(c);
  kernels.lstm_step_backward(0, in(gates, four), in(before, state), in(c, state), in(h, state), {}, out(grad, four), {},
                             out(c, state), stream());
  take(grad), take(c);
  kernels.gru_step(0, in(a, three), in(b, three), in(before, state), {}, out(gates, four), out(h, state), stream());
  take(gates), take(h);
  kernels.gru_step_backward(0, in(gates, four), in(before, state), in(h, state), {}, out(grad, three),
                            out(other, three), out(c, state), stream());
  take(grad), take(other), take(c);
  const Resample2dShape s{2, 5, 4, 7, 9, 6, 5.0F / 9, 4.0F / 6, ResampleRule::kLinear};
  const Shape small = {2, 5, 4, 7}, large = {2, 9, 6, 7};
  Floats y(static_cast<std::size_t>(large.count())), x(static_cast<std::size_t>(small.count()));
  kernels.resample2d(s, in(a, small), out(y, large), stream()), take(y);
  kernels.resample2d_backward(s, in(y, large), out(x, small), stream()), take(x);
}

std::string digest_of_kernels() {
  constexpr Index kRows = 3 * 9 * 9, kChannels = 70, kCount = kRows * kChannels;
  crypto::Sha256 hash;
  const auto take = [&](const Floats& values) { hash.update(std::as_bytes(std::span(values))); };
  const Floats a = uniform(kCount, 1), b = uniform(kCount, 2);
  Floats result(kCount), scale(kCount), grad = uniform(kCount, 3), sums(kChannels);
  const KernelTable& kernels = tested();
  kernels.add(in(a), in(b), out(result), stream()), take(result);
  kernels.scale(in(a), 0.7F, out(result, {kCount}, true), stream()), take(result);
  kernels.relu_backward(in(b), out(result), stream()), take(result);
  kernels.bias_backward(in(a, {kRows, kChannels}), out(sums), stream()), take(sums);
  kernels.l2_loss(in(a), {sums.data(), {}}, stream()), take(sums);
  const LrnParams lrn{kRows, kChannels, 4, 1, 0.1F, 0.75F};
  const Shape of = {kRows, kChannels};
  kernels.lrn(lrn, in(a, of), out(result, of), out(scale, of), stream()), take(result);
  kernels.lrn_backward(lrn, in(a, of), in(result, of), in(scale, of), in(b, of), out(grad, of, true), stream()),
      take(grad);
  const float lr = 0.1F;
  for (const bool nesterov : {false, true}) {
    const UpdateTensor tensor{result.data(), b.data(), {scale.data()}, kCount};
    kernels.sgd_step(std::span(&tensor, 1), {{&lr, 1e-3F}, 0.9F, nesterov}, stream()), take(result), take(scale);
  }
  const std::array<const float*, 3> grads = {a.data(), b.data(), grad.data()};
  const std::array<float*, 1> copies = {scale.data()};
  const SharedUpdate ranks{grads, copies};
  const UpdateTensor shared{result.data(), nullptr, {}, kCount, &ranks};
  kernels.sgd_step(std::span(&shared, 1), {{&lr, 1e-3F}}, stream()), take(result), take(scale);
  take_functions(kernels, take);
  take_short_arrays(kernels, take);
  take_steps(kernels, take);
  return crypto::hex(hash.finish());
}

TEST(Isa, Probe) {
  const std::string digest = digest_of_kernels();
  EXPECT_EQ(digest, digest_of_kernels()) << "two calls with the same data gave different bits";
  std::printf("isa %d digest %s\n", static_cast<int>(cpu_isa()), digest.c_str());
}

// oneDNN's name for the highest instruction set that it uses: an enumerator of dnnl::cpu_isa.
int onednn_isa() {
#if LOCKSTEP_WITH_ONEDNN
  tested();  // the limit is set with the first table of kernels
  return static_cast<int>(dnnl::get_effective_cpu_isa());
#else
  return -1;
#endif
}

TEST(Isa, OneDnnProbe) { std::printf("isa %d\n", onednn_isa()); }

// Runs this program under LOCKSTEP_ISA=name and returns its output.
std::string output_under(const std::string& name, const std::string& which = "Probe") {
  const std::string command = "LOCKSTEP_ISA=" + name + " '" + ::testing::internal::GetArgvs().front() +
                              "' --gtest_filter=Isa." + which + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "could not be started";
  std::string text;
  std::array<char, 256> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
  pclose(pipe);
  return text;
}

std::string probe(const std::string& name, const std::string& which = "Probe") {
  const auto line = find_match(output_under(name, which), "(?:^|\n)(isa [^\n]*\n)");
  return line.empty() ? "no answer" : line[1];
}

TEST(Isa, EveryBuildGivesTheSameBits) {
  const Isa here = cpu_isa();
  if (here == Isa::kBaseline)
    GTEST_SKIP() << "this CPU (or LOCKSTEP_ISA) only allows the baseline: there is nothing to compare";
  const std::string expected = fmt::format("digest {}\n", digest_of_kernels());
  EXPECT_EQ(probe("baseline"), "isa 0 " + expected);
  EXPECT_EQ(probe("avx2"), "isa 1 " + expected);
}

TEST(Isa, AnUnknownOneIsAnErrorThatNamesTheChoices) {
  for (const char* name : {"sse9", "AVX2", "avx512,amx"})
    EXPECT_THAT(output_under(name), HasSubstr(fmt::format("InvalidArgument: environment: LOCKSTEP_ISA='{}' is invalid: "
                                                          "expected baseline, avx2, avx512 or amx",
                                                          name)));
}

TEST(Isa, OneThatTheMachineLacksGivesAWarning) {
  const Isa here = cpu_isa();
  if (here == Isa::kAmx || env::text(env::kIsa))
    GTEST_SKIP() << "this CPU has every instruction set, or LOCKSTEP_ISA is set";
  const std::string used = isa_name(here);
  for (const Isa isa : kIsas) {
    const std::string warning =
        fmt::format("LOCKSTEP_ISA={}, but this CPU supports {} at most: {} is used\n", isa_name(isa), used, used);
    const std::string text = output_under(isa_name(isa));
    if (isa > here) {
      EXPECT_EQ(find_matches(text, "warning: " + warning).size(), 1U) << text;
    } else {
      EXPECT_THAT(text, Not(HasSubstr("warning"))) << text;
      EXPECT_THAT(text, HasSubstr(fmt::format("isa {} digest", static_cast<int>(isa))));
    }
  }
}

TEST(Isa, LimitsOneDnn) {
#if LOCKSTEP_WITH_ONEDNN
  if (cpu_isa() == Isa::kBaseline)
    GTEST_SKIP() << "this CPU (or LOCKSTEP_ISA) only allows the baseline: there is nothing to lower";
  EXPECT_EQ(probe("baseline", "OneDnnProbe"), fmt::format("isa {}\n", static_cast<int>(dnnl::cpu_isa::sse41)));
  EXPECT_EQ(probe("avx2", "OneDnnProbe"), fmt::format("isa {}\n", static_cast<int>(dnnl::cpu_isa::avx2)));
#else
  GTEST_SKIP() << "this build has no oneDNN";
#endif
}

}  // namespace
}  // namespace lockstep::testing
