// The loops that are built for several instruction sets give the same bits from each: this program runs itself with
// LOCKSTEP_ISA and compares digests of what the kernels computed.
#include <fmt/format.h>

#include <array>
#include <cstdio>

#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/crypto.h"
#include "tests/kernels/cpu/exact.h"

namespace lockstep::testing {
namespace {

std::string digest_of_kernels() {
  constexpr Index kRows = 3 * 9 * 9, kChannels = 70, kCount = kRows * kChannels;
  crypto::Sha256 hash;
  const auto take = [&](const Floats& values) { hash.update(std::as_bytes(std::span(values))); };
  const Floats a = uniform(kCount, 1), b = uniform(kCount, 2);
  Floats out(kCount), scale(kCount), grad = uniform(kCount, 3), sums(kChannels);
  const KernelTable& kernels = tested();
  kernels.add(a.data(), b.data(), out.data(), kCount, stream()), take(out);
  kernels.scale(a.data(), 0.7F, out.data(), kCount, true, stream()), take(out);
  kernels.relu_backward(b.data(), out.data(), kCount, stream()), take(out);
  kernels.bias_backward(a.data(), sums.data(), kRows, kChannels, false, stream()), take(sums);
  kernels.l2_loss(a.data(), kCount, sums.data(), stream()), take(sums);
  const LrnParams lrn{kRows, kChannels, 4, 1, 0.1F, 0.75F};
  kernels.lrn(lrn, a.data(), out.data(), scale.data(), stream()), take(out);
  kernels.lrn_backward(lrn, a.data(), out.data(), scale.data(), b.data(), grad.data(), true, stream()), take(grad);
  const float lr = 0.1F;
  for (const bool nesterov : {false, true}) {
    const SgdTensor tensor{out.data(), b.data(), scale.data(), kCount};
    kernels.sgd_step(std::span(&tensor, 1), {&lr, 0.9F, 1e-3F, nesterov}, stream()), take(out), take(scale);
  }
  return crypto::hex(hash.finish());
}

TEST(Isa, Probe) {
  const std::string digest = digest_of_kernels();
  EXPECT_EQ(digest, digest_of_kernels()) << "two calls with the same data gave different bits";
  std::printf("isa %d digest %s\n", static_cast<int>(cpu_isa()), digest.c_str());
}

// What the probe prints when it runs under LOCKSTEP_ISA=name.
std::string probe(const std::string& name) {
  const std::string command = "LOCKSTEP_ISA=" + name + " '" + ::testing::internal::GetArgvs().front() + "' --gtest_filter=Isa.Probe";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "could not be started";
  std::string text;
  std::array<char, 256> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr)
    if (std::string_view(line.data()).starts_with("isa ")) text = line.data();
  pclose(pipe);
  return text;
}

TEST(Isa, EveryBuildGivesTheSameBits) {
  const Isa here = cpu_isa();
  if (here == Isa::kBaseline) GTEST_SKIP() << "this CPU (or LOCKSTEP_ISA) allows the baseline only: nothing to compare";
  const std::string expected = fmt::format("digest {}\n", digest_of_kernels());
  EXPECT_EQ(probe("baseline"), "isa 0 " + expected);
  EXPECT_EQ(probe("avx2"), "isa 1 " + expected);
}

}  // namespace
}  // namespace lockstep::testing
