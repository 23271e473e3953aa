// Texts between all ranks by MPI, before there is any group: how mpirun's ranks on several machines find each other.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::mpi {

inline constexpr std::size_t kMaxTextBytes = 1000;

// Collective over MPI_COMM_WORLD, which is started if it is not. Throw RendezvousError when not all ranks come within
// the timeout (MPI is then given up), InvalidArgument for what mpi::start() refuses and for a longer text.
std::vector<std::string> all_gather_texts(const std::string& mine, int ranks, std::chrono::milliseconds timeout);
std::string broadcast_text(const std::string& rank_zeros, int ranks, std::chrono::milliseconds timeout);

}  // namespace lockstep::mpi
