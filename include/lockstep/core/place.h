// The position of a rank in its job.
#pragma once

#pragma GCC visibility push(default)
namespace lockstep {

struct Place {
  int rank = 0;              // 0 .. world_size-1, unique in the job
  int world_size = 1;        // number of ranks
  int local_rank = 0;        // 0 .. local_world_size-1 on this node
  int local_world_size = 1;  // ranks on this node

  bool operator==(const Place&) const = default;
};

}  // namespace lockstep
#pragma GCC visibility pop
