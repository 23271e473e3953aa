// MPI's functions and objects, loaded at run time, in place of <mpi.h>: a program that does not use MPI also starts
// without it.
#pragma once

#include <mpi.h>

#include <string>

namespace lockstep::mpi {

struct Api {
#define LOCKSTEP_MPI_FUNCTIONS(apply)                                                                                  \
  apply(MPI_Initialized) apply(MPI_Init_thread) apply(MPI_Query_thread) apply(MPI_Finalize) apply(MPI_Error_string)    \
      apply(MPI_Comm_size) apply(MPI_Comm_rank) apply(MPI_Comm_group) apply(MPI_Comm_create_group)                     \
          apply(MPI_Comm_set_errhandler) apply(MPI_Group_incl) apply(MPI_Group_free) apply(MPI_Op_create)              \
              apply(MPI_Test) apply(MPI_Iprobe) apply(MPI_Irecv) apply(MPI_Isend) apply(MPI_Get_count)                 \
                  apply(MPI_Ibarrier) apply(MPI_Ibcast) apply(MPI_Iallreduce) apply(MPI_Ireduce)                       \
                      apply(MPI_Ireduce_scatter_block) apply(MPI_Iallgather) apply(MPI_Iallgatherv) apply(MPI_Igather) \
                          apply(MPI_Iscatter) apply(MPI_Ialltoall) apply(MPI_Ialltoallv)
#define LOCKSTEP_MPI_POINTER(function) decltype(&::function) function = nullptr;
  LOCKSTEP_MPI_FUNCTIONS(LOCKSTEP_MPI_POINTER)
#undef LOCKSTEP_MPI_POINTER

  void* library = nullptr;
};

// Loads `file`. Throws InvalidArgument if it does not exist or is not Open MPI (with the missing functions).
Api load_api(const std::string& file);
// The MPI of this process: the program's own, if it uses one. Loaded in the first call.
const Api& api();
// The symbol with this name in the library.
void* object(const char* name);

}  // namespace lockstep::mpi

// Open MPI's constants (MPI_COMM_WORLD, MPI_FLOAT, ...) are the addresses of such objects.
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global)                       \
  (static_cast<type>([] {                                          \
    static void* const kObject = ::lockstep::mpi::object(#global); \
    return kObject;                                                \
  }()))
