#include "examples/cifar10/lines.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>

std::string time_now() {
  using std::chrono::microseconds;
  const auto since_1970 =
      std::chrono::duration_cast<microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto seconds = static_cast<std::time_t>(since_1970 / 1'000'000);
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return fmt::format("{}.{:06}", text, since_1970 % 1'000'000);
}
