#include "src/comm/call/collectives.h"

#include "lockstep/core/error.h"

namespace lockstep {

void Collectives::run_collective(const Operation& operation, const char* backend) {
  switch (operation.signature.kind) {
    case OperationKind::kBarrier: return barrier(operation);
    case OperationKind::kBroadcast: return broadcast(operation);
    case OperationKind::kAllReduce: return all_reduce(operation);
    case OperationKind::kAllGather: return all_gather(operation);
    case OperationKind::kReduce: return reduce_to_root(operation);
    case OperationKind::kGather: return gather(operation);
    case OperationKind::kScatter: return scatter(operation);
    case OperationKind::kReduceScatter: return reduce_scatter(operation);
    case OperationKind::kAllToAll: return all_to_all(operation);
    case OperationKind::kAllGatherV: return all_gather_v(operation);
    case OperationKind::kAllToAllV: return all_to_all_v(operation);
    case OperationKind::kAllocate: break;
  }
  LOCKSTEP_CHECK(false, "backend {}: cannot execute {}", backend, name_of(operation.signature.kind));
}

}  // namespace lockstep
