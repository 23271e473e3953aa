#include "tests/kernels/reference_comparison.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>

#include "src/core/process/compute_threads.h"
#include "tests/kernels/emulated_cuda/blocks.h"
#include "tests/kernels/emulated_cuda/table.h"
#ifdef EMULATED_UNDER_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace lockstep::testing {

namespace {

// Makes AddressSanitizer report accesses there.
void forbid([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#ifdef EMULATED_UNDER_ASAN
  __asan_poison_memory_region(begin, static_cast<std::size_t>(end - begin));
#endif
}
void allow([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#ifdef EMULATED_UNDER_ASAN
  __asan_unpoison_memory_region(begin, static_cast<std::size_t>(end - begin));
#endif
}

// Calls work() with that number of the CPU's threads.
template <typename Work> auto with_threads(int threads, const Work& work) {
  set_compute_threads(threads);
  auto result = work();
  set_compute_threads(0);
  return result;
}

bool has_same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// 0 even if `size` is infinite or NaN.
float share(float part, float size) { return part == 0 ? 0 : part * std::abs(size); }

}  // namespace

GuardedBench::~GuardedBench() {
  for (const Array& array : arrays_) allow(array.data(), array.data() + array.all_bytes);
}

void ReferenceComparison::SetUp() {
  device_ = &cpu_device();
  if (GetParam() == "cuda") {
    device_ = found_gpu().device;
    if (device_ == nullptr) return need_gpu();
  }
  kernels_ = is_emulated() ? &emulated_kernels() : &device_->kernels();
  emulated_cuda::set_order(GetParam() == "emulated_backwards" ? emulated_cuda::Order::kBackwards
                                                              : emulated_cuda::Order::kForwards);
}

bool GuardedBench::ends_at_pages() const {
  return device_.kind() == DeviceKind::kCpu && &kernels != &emulated_kernels();
}

std::byte* GuardedBench::add(const Bytes& bytes, std::size_t element_bytes, Place place, Read read) {
  const bool at_page = ends_at_pages();
  const std::size_t offset = kGuard + (place == Place::kOneElementOff ? element_bytes : 0),
                    all_bytes = offset + bytes.size() + (at_page ? 0 : kGuard);
  Bytes all(all_bytes, kPattern);
  std::copy(bytes.begin(), bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(offset));
  Array array{
      {}, {}, offset, bytes.size(), all_bytes, static_cast<Index>(bytes.size() / element_bytes), std::move(read)};
  if (at_page)
    array.at_end.emplace(all_bytes);
  else
    array.memory = device_.allocate(all_bytes);
  device_.copy(array.data(), all.data(), all_bytes, stream());
  stream().synchronize();
  if (device_.kind() == DeviceKind::kCpu) {
    forbid(array.data(), array.data() + offset);
    forbid(array.data() + offset + bytes.size(), array.data() + all_bytes);
  }
  arrays_.push_back(std::move(array));
  return arrays_.back().data() + offset;
}

std::vector<Floats> GuardedBench::results(const std::string& what) {
  std::vector<Floats> all;
  for (const Array& array : arrays_) {
    Bytes bytes(array.all_bytes);
    allow(array.data(), array.data() + bytes.size());
    device_.copy(bytes.data(), array.data(), bytes.size(), stream());
    stream().synchronize();
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(array.offset),
               end = begin + static_cast<std::ptrdiff_t>(array.bytes);
    const auto is_pattern = [](std::byte byte) { return byte == kPattern; };
    EXPECT_TRUE(std::all_of(bytes.begin(), begin, is_pattern))
        << what << ": written before an array of " << array.count;
    EXPECT_TRUE(std::all_of(end, bytes.end(), is_pattern)) << what << ": written after an array of " << array.count;
    if (array.read) all.push_back(array.read(bytes.data() + array.offset, array.count));
  }
  return all;
}

void ReferenceComparison::compare(const std::string& what, const std::vector<Bound>& bounds, const Work& work,
                                  DType type) {
  const auto run = [&](Device& device, const KernelTable& kernels, Values values) {
    GuardedBench bench(device, kernels, type, values);
    work(bench)();
    return bench.results(what);
  };
  const auto expected = run(cpu_device(), reference_kernels(), Values::kGiven);
  const bool asks_for_products =
      std::any_of(bounds.begin(), bounds.end(), [](const Bound& bound) { return bound.products != 0; });
  const auto products = asks_for_products ? run(cpu_device(), reference_kernels(), Values::kAbsolute) : expected;
  const auto run_tested = [&] { return run(*device_, *kernels_, Values::kGiven); };
  const bool varies_threads = kernels_ == &cpu_device().kernels() && std::getenv("OMP_NUM_THREADS") == nullptr;
  const auto actual = varies_threads ? with_threads(1, run_tested) : run_tested();
  if (varies_threads) {
    const auto shared = with_threads(3, run_tested);
    for (std::size_t r = 0; r < actual.size(); ++r)
      for (std::size_t i = 0; i < actual[r].size(); ++i)
        ASSERT_TRUE(has_same_bits(shared[r][i], actual[r][i]))
            << what << ": output " << r << ", element " << i << " is " << actual[r][i] << " with one thread, "
            << shared[r][i] << " with three";
  }
  ASSERT_FALSE(expected.empty()) << what << ": there is nothing to compare";
  for (std::size_t r = 0; r < expected.size(); ++r) {
    const Bound& bound = bounds[std::min(r, bounds.size() - 1)];
    float largest = 0;
    for (const float value : expected[r]) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < expected[r].size(); ++i) {
      const float wanted = expected[r][i], got = actual[r][i];
      if (got == wanted || (std::isnan(got) && std::isnan(wanted))) continue;
      const float allowed = share(bound.products, products[r][i]) + share(bound.value, wanted) +
                            share(bound.largest, largest) + bound.absolute;
      ASSERT_LE(std::abs(got - wanted), allowed)
          << what << ": output " << r << ", element " << i << " of " << expected[r].size() << " is " << got
          << ", the plain kernel's " << wanted;
    }
  }
}

}  // namespace lockstep::testing
