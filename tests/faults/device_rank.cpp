// Prints the device on which a rank computes.
#include <cstdio>

#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

int main(int argc, char** argv) {
  return lockstep::run_main(
      "device_rank",
      [](int, char**) {
        const long rank = lockstep::env::integer(lockstep::env::kLocalRank, 0, 4096).value_or(0);
        std::printf("on %s\n", lockstep::local_device(static_cast<int>(rank)).name().c_str());
        return 0;
      },
      argc, argv);
}
