// The list of backends: the one place in comm/ that knows which are built in.
#include "lockstep/comm/backend.h"
#include "lockstep/core/error.h"
#include "src/comm/delay/delay_backend.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/ring/ring_backend.h"
#if LOCKSTEP_WITH_MPI
#include "src/comm/mpi/mpi_backend.h"
#endif

namespace lockstep {

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendContext& context) {
  if (context.place.world_size > 1 && (name == "delay" || name == "local"))
    throw InvalidArgument("backend '{}' moves no data: it is for a world of one, this one has {} ranks", name, context.place.world_size);
  if (name == "ring") return make_ring_backend(context);
  if (name == "mpi") {
#if LOCKSTEP_WITH_MPI
    return make_mpi_backend(context);
#else
    throw InvalidArgument(
        "backend 'mpi' is not in this build: install Open MPI's headers (libopenmpi-dev) and configure with -Dmpi=enabled, or use ring");
#endif
  }
  if (name == "delay") return std::make_unique<DelayBackend>(delay_cost_from_environment());
  if (name == "local") return make_local_backend();
  throw InvalidArgument("unknown backend '{}': LOCKSTEP_BACKEND is one of ring, mpi, local, delay", name);
}

Work Backend::send(const Message& message) { throw InvalidArgument("{}: backend '{}' has no messages", describe_send(message), name()); }
Work Backend::receive(const Message& message) {
  throw InvalidArgument("{}: backend '{}' has no messages", describe_receive(message), name());
}

}  // namespace lockstep
