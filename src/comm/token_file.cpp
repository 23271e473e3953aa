#include "src/comm/token_file.h"

#include <sys/stat.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/log.h"

namespace lockstep {

void warn_of_open_token_file() {
  const auto path = env::text(env::kTokenFile);
  struct stat facts {};
  if (!path || env::text(env::kToken) || env::text("KUBERNETES_SERVICE_HOST") || ::stat(path->c_str(), &facts) != 0) return;
  if ((facts.st_mode & S_IROTH) != 0) log::warn("{}={} can be read by every user of this machine: chmod 600 it", env::kTokenFile, *path);
}

}  // namespace lockstep
