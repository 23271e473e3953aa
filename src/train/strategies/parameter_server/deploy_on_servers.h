// deploy() for a DeploymentConfig with parameter servers.
#pragma once

#include "lockstep/train/deploy.h"

namespace lockstep::train {

// Collective over all workers and servers. See deploy().
DeployedModel deploy_on_servers(const DeploymentConfig& config, const Training& training, const DeployOptions& options);

}  // namespace lockstep::train
