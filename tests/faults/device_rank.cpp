// Prints the device on which a rank computes: device_rank. Or finds devices by name: device_rank NAME...
#include <cstdio>

#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/logical_devices.h"

int main(int argc, char** argv) {
  return lockstep::run_main(
      "device_rank",
      [](int count, char** words) {
        for (int i = 1; i < count; ++i) {
          try {
            std::printf("%s is %s\n", words[i], lockstep::device_named(words[i]).name().c_str());
          } catch (const lockstep::Error& error) {
            std::printf("%s: %s\n", words[i], error.what());
          }
        }
        if (count > 1) return 0;
        const long rank = lockstep::env::integer(lockstep::env::kLocalRank, 0, 4096).value_or(0);
        std::printf("on %s\n", lockstep::local_device(static_cast<int>(rank)).name().c_str());
        return 0;
      },
      argc, argv);
}
