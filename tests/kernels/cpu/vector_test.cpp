// The functions of kernels/cpu/simd, in each build that this CPU can run.
#include "kernels/cpu/simd/vector.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/simd/transpose.h"
#include "tests/kernels/guarded_memory.h"
#include "tests/kernels/isa_names.h"

namespace lockstep {

using testing::GuardedFloats;
#if defined(__x86_64__)
inline constexpr bool kHasSse2 = true;
#else
inline constexpr bool kHasSse2 = false;
#endif

}  // namespace lockstep

#define LOCKSTEP_LOOPS "tests/kernels/cpu/vector_test.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::testing {
namespace {

class Vectors : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (cpu_isa() < GetParam())
      GTEST_SKIP() << "needs " << isa_name(GetParam()) << "; this CPU, or LOCKSTEP_ISA, allows " << isa_name(cpu_isa());
  }
};

#if defined(__x86_64__)
constexpr Isa kBuilds[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};
#define LOCKSTEP_TEST_BUILDS(name)                                       \
  switch (GetParam()) {                                                  \
    case Isa::kBaseline: return lockstep::baseline::vector_test::name(); \
    case Isa::kAvx2: return lockstep::avx2::vector_test::name();         \
    case Isa::kAvx512: return lockstep::avx512::vector_test::name();     \
    case Isa::kAmx: break;                                               \
  }
#else
constexpr Isa kBuilds[] = {Isa::kBaseline};
#define LOCKSTEP_TEST_BUILDS(name) lockstep::baseline::vector_test::name();
#endif
INSTANTIATE_TEST_SUITE_P(Builds, Vectors, ::testing::ValuesIn(kBuilds),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

TEST_P(Vectors, LoadAndStoreTheFirstLanes){LOCKSTEP_TEST_BUILDS(partial_loads_and_stores)} TEST_P(Vectors,
                                                                                                  AreSelectedByMasks){
    LOCKSTEP_TEST_BUILDS(masks)} TEST_P(Vectors, HoldConstants){LOCKSTEP_TEST_BUILDS(constants)} TEST_P(Vectors,
                                                                                                        ArePermuted){
    LOCKSTEP_TEST_BUILDS(permutations)} TEST_P(Vectors, AreReduced){
    LOCKSTEP_TEST_BUILDS(reductions)} TEST_P(Vectors, AreConverted){
    LOCKSTEP_TEST_BUILDS(conversions)} TEST_P(Vectors, FuseProducts){
    LOCKSTEP_TEST_BUILDS(fused_products)} TEST_P(Vectors, HaveMaximaAndAreClamped){
    LOCKSTEP_TEST_BUILDS(maxima_and_clamping)} TEST_P(Vectors, AreMultipliedByPowersOf2){
    LOCKSTEP_TEST_BUILDS(powers_of_2)} TEST_P(Vectors, AreTransposed) {
  LOCKSTEP_TEST_BUILDS(transpositions)
}

}  // namespace
}  // namespace lockstep::testing
