// Exchanges texts between all ranks through MPI before there is a group, so that mpirun's ranks on several machines
// find each other.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::mpi {

inline constexpr std::size_t kMaxTextBytes = 1000;

// Collective over MPI_COMM_WORLD, which is initialised if necessary. Throws RendezvousError if not all ranks arrive
// before the timeout (MPI is then abandoned), and InvalidArgument for a text that is too long and for the errors of
// mpi::start().
std::vector<std::string> all_gather_texts(const std::string& mine, int ranks, std::chrono::milliseconds timeout);
std::string broadcast_text(const std::string& rank_zeros, int ranks, std::chrono::milliseconds timeout);

}  // namespace lockstep::mpi
