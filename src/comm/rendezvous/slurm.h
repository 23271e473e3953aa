// srun's variables of a task, read into a job's environment. Pure.
//
// SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID; SLURM_STEP_NUM_TASKS or SLURM_NTASKS; SLURM_STEP_TASKS_PER_NODE,
// SLURM_TASKS_PER_NODE or SLURM_NTASKS_PER_NODE; the first host of SLURM_STEP_NODELIST, SLURM_JOB_NODELIST or
// SLURM_NODELIST has rank 0. A batch script is a task as well, but of no step: without SLURM_STEP_ID (SLURM_STEPID)
// none of it counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/rendezvous/environment_reader.h"

namespace lockstep::slurm {

// "2(x3),1": 2, 2, 2, 1. The functions below throw InvalidArgument that names the variable and its value.
std::vector<int> parse_tasks_per_node(const char* variable, const std::string& value);

// The first of "node[07-09,11],gpu3": node07.
std::string first_host(const char* variable, const std::string& list);

// The first of "12000-12003,12010": what srun --resv-ports has set aside.
std::uint16_t first_port(const char* variable, const std::string& ports);

// Without reserved ports: 20000 + (6163 x job + step) modulo 9973, thus below the ports that Linux gives to
// connections. 9973 is prime, so that steps of one job have one port only when their numbers are a multiple of 9973
// apart; 6163 is its golden section, so that jobs whose numbers are close lie far apart: two that follow each other by
// 3810 steps.
std::uint16_t port_of_step(long job, long step);

// This process is a task of an srun step with several.
bool is_task(const EnvironmentReader& reader);

// It is the only task of one: no other launcher's variables (PMI's, say, which srun sets as well) make it one of
// several.
bool is_lone_task(const EnvironmentReader& reader);

// Its tasks are as many as its nodes.
bool has_one_task_a_node(const EnvironmentReader& reader);

// Fills in kind, place and the job's id, on several machines also host and port.
void read_job(const EnvironmentReader& reader, JobEnvironment& job);

// srun waits for every task of a step, also for one that is stopped. For the end of a message about a rank that does
// not come: "" outside of a step, and where another launcher made the ranks.
std::string how_to_end_step(const EnvironmentLookup& lookup);

}  // namespace lockstep::slurm
