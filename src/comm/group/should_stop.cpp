#include "lockstep/comm/should_stop.h"

#include <cstdint>
#include <span>

#include "src/core/process/stop_request.h"

namespace lockstep {

bool should_stop(const std::shared_ptr<ProcessGroup>& given) {
  remember_stop_signals();
  const auto group = given ? given : default_process_group();
  std::int32_t is_requested = is_stop_requested() ? 1 : 0;
  if (group && group->world_size() > 1)
    group->all_reduce(std::span(&is_requested, 1), ReduceOp::kMax, {.purpose = {"stop request"}});
  return is_requested != 0;
}

}  // namespace lockstep
