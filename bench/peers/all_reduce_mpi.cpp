// MPI_Allreduce by message size. Compiled by the mpicxx of each Open MPI; bench/peers/mpi_rounds.h says what is timed.
//
//   mpirun -n 2 all_reduce_mpi 4 1024 26214400
#include "bench/peers/mpi_rounds.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const std::string version = std::to_string(OMPI_MAJOR_VERSION) + "." + std::to_string(OMPI_MINOR_VERSION) + "." +
                              std::to_string(OMPI_RELEASE_VERSION);
  peers::time_sizes("openmpi-" + version, {argv + 1, argv + argc}, [](std::vector<float>& values) {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  MPI_Finalize();
  return 0;
}
