// oneCCL's all-reduce on the CPU by message size. Intel MPI starts the ranks, and its barrier separates the rounds;
// bench/peers/mpi_rounds.h says what is timed.
//
//   mpirun -n 2 all_reduce_oneccl 4 1024 26214400
#include <oneapi/ccl.hpp>

#include "bench/peers/mpi_rounds.h"

namespace {

ccl::communicator make_communicator() {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ccl::shared_ptr_class<ccl::kvs> store;
  ccl::kvs::address_type address;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (rank != 0) store = ccl::create_kvs(address);
  return ccl::create_communicator(ranks, rank, store);
}

void time_oneccl(const std::vector<std::string>& sizes) {
  const ccl::communicator communicator = make_communicator();
  const ccl::library_version version = ccl::get_library_version();
  const std::string peer = "oneccl-" + std::to_string(version.major) + "." + std::to_string(version.minor);
  peers::time_sizes(peer, sizes, [&communicator](std::vector<float>& values) {
    ccl::allreduce(values.data(), values.data(), values.size(), ccl::reduction::sum, communicator).wait();
  });
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);  // oneCCL warns if MPI has a lower level
  ccl::init();
  time_oneccl({argv + 1, argv + argc});
  MPI_Finalize();
  return 0;
}
