// In a build without oneDNN, plain loops compute matrix products and convolutions. The first call that takes some
// hundredths of a second logs once why that is slow and how to speed it up.
#include <atomic>

#include "kernels/cpu/cpu_table.h"
#include "kernels/linear_shape.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/kernels.h"
#include "lockstep/core/log.h"

namespace lockstep {

namespace slow_products {

namespace {

constexpr double kMany = 1 << 24;  // products in one call

std::atomic<bool> is_told{false};

void tell(double products) {
  if (products < kMany || is_told.exchange(true)) return;
  if (env::text(env::kLocalRank).value_or("0") != "0") return;  // one rank per machine logs it
  log::warn(
      "convolutions and matrix products are many times slower than necessary because this build has no oneDNN; install "
      "libdnnl-dev and "
      "configure the build again with -Donednn=enabled");
}

void conv2d(const Conv2dShape& s, In x, In weight, In bias, bool relu, Out y, Stream& stream) {
  tell(static_cast<double>(y.count()) * static_cast<double>(s.kernel_height * s.kernel_width * s.group_channels()));
  reference_kernels().conv2d(s, x, weight, bias, relu, y, stream);
}

void linear(In x, In weight, In bias, bool relu, Out y, Stream& stream) {
  const LinearShape s = linear_shape(x, y);
  tell(static_cast<double>(s.batch) * static_cast<double>(s.in_features) * static_cast<double>(s.out_features));
  reference_kernels().linear(x, weight, bias, relu, y, stream);
}

void matmul(In a, bool transpose_a, In b, bool transpose_b, Out c, Stream& stream) {
  tell(static_cast<double>(c.count()) * static_cast<double>(a.shape[transpose_a ? 1 : 2]));
  reference_kernels().matmul(a, transpose_a, b, transpose_b, c, stream);
}

}  // namespace

}  // namespace slow_products

void log_slow_products(KernelTable& table) {
  slow_products::is_told = false;
  table.conv2d = slow_products::conv2d;
  table.linear = slow_products::linear;
  table.matmul = slow_products::matmul;
}

}  // namespace lockstep
