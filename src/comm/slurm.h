// What srun tells each of its tasks, read into a job's environment. Pure.
//
// SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID; SLURM_STEP_NUM_TASKS or SLURM_NTASKS; SLURM_STEP_TASKS_PER_NODE, SLURM_TASKS_PER_NODE or
// SLURM_NTASKS_PER_NODE; the first host of SLURM_STEP_NODELIST, SLURM_JOB_NODELIST or SLURM_NODELIST has rank 0. A batch script is a task
// as well, but of no step: without SLURM_STEP_ID (SLURM_STEPID) none of it counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/environment_reader.h"

namespace lockstep::slurm {

// "2(x3),1": 2, 2, 2, 1. The functions below throw InvalidArgument that names the variable and its value.
std::vector<int> parse_tasks_per_node(const char* variable, const std::string& value);

// The first of "node[07-09,11],gpu3": node07.
std::string first_host(const char* variable, const std::string& list);

// The first of "12000-12003,12010": what srun --resv-ports has set aside.
std::uint16_t first_port(const char* variable, const std::string& ports);

// Without reserved ports: 20000 + 10 x (job modulo 1000) + step modulo 10, thus 20000 to 29999, below the ports that Linux gives to
// connections. Two jobs of one node differ unless their numbers are a multiple of 1000 apart.
std::uint16_t port_of_step(long job, long step);

// This process is a task of an srun step with several.
bool is_task(const EnvironmentReader& reader);

// It is the only task of one: nobody else's variables (PMI's, say, which srun sets as well) make it one of several.
bool is_lone_task(const EnvironmentReader& reader);

// Fills in kind, place, and host and port or the job's id.
void read_job(const EnvironmentReader& reader, JobEnvironment& job);

}  // namespace lockstep::slurm
