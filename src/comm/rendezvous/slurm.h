// Reads a job's environment from srun's variables of a task. Pure.
//
// SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID; SLURM_STEP_NUM_TASKS or SLURM_NTASKS; SLURM_STEP_TASKS_PER_NODE,
// SLURM_TASKS_PER_NODE or SLURM_NTASKS_PER_NODE; rank 0 is on the first host of SLURM_STEP_NODELIST, SLURM_JOB_NODELIST
// or SLURM_NODELIST. A batch script is also a task, but of no step: without SLURM_STEP_ID (SLURM_STEPID) the variables
// are ignored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/rendezvous/environment_reader.h"

namespace lockstep::slurm {

// "2(x3),1" gives 2, 2, 2, 1. The functions below throw InvalidArgument that names the variable and its value.
std::vector<int> parse_tasks_per_node(const char* variable, const std::string& value);

// The first host of "node[07-09,11],gpu3": node07.
std::string first_host(const char* variable, const std::string& list);

// The first port of "12000-12003,12010", which srun --resv-ports has reserved.
std::uint16_t first_port(const char* variable, const std::string& ports);

// The port without reserved ports: 20000 + (6163 x job + step) modulo 9973, below the ephemeral ports of Linux. 9973 is
// prime, so that steps of one job share a port only if their numbers differ by a multiple of 9973. 6163 divides it in
// the golden ratio, so that jobs with close numbers get distant ports: those of consecutive jobs differ by at least
// 3810.
std::uint16_t port_of_step(long job, long step);

// Whether this process is a task of an srun step with several tasks.
bool is_task(const EnvironmentReader& reader);

// Whether this process is the only task of its step, and no other launcher's variables (such as PMI's, which srun also
// sets) make it one of several.
bool is_lone_task(const EnvironmentReader& reader);

// Whether its step has as many tasks as nodes.
bool has_one_task_a_node(const EnvironmentReader& reader);

// Fills in kind, place and the job's id; on several machines also host and port.
void read_job(const EnvironmentReader& reader, JobEnvironment& job);

// srun waits for every task of a step, even for a stopped one. Advice for the end of a message about a missing rank; ""
// outside of a step, or if another launcher made the ranks.
std::string how_to_end_step(const EnvironmentLookup& lookup);

}  // namespace lockstep::slurm
