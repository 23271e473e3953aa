#include "lockstep/comm/abort_on_error.h"

#include "src/core/base/text.h"

namespace lockstep {

void abort_for(ProcessGroup& group, const std::exception_ptr& error) {
  if (group.world_size() > 1) group.abort(exception_text(error));
}

}  // namespace lockstep
