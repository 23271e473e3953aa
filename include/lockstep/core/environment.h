// Names of the environment variables that Lockstep reads or sets, and functions that parse them.
#pragma once

#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace lockstep::env {

// The variables of torchrun, mpirun wrappers and Kubernetes' training operators: the launcher sets them, each rank
// reads them.
inline constexpr const char* kRank = "RANK";
inline constexpr const char* kWorldSize = "WORLD_SIZE";
inline constexpr const char* kLocalRank = "LOCAL_RANK";
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr const char* kGroupRank = "GROUP_RANK";             // number of the node; set by lockrun and torchrun
inline constexpr const char* kGroupWorldSize = "GROUP_WORLD_SIZE";  // number of nodes
inline constexpr const char* kNodeRank = "NODE_RANK";               // another name for GROUP_RANK
inline constexpr const char* kMasterAddr = "MASTER_ADDR";
inline constexpr const char* kMasterPort = "MASTER_PORT";

// Set by torchrun: "True" if its agent serves a store of its own at MASTER_PORT.
inline constexpr const char* kTorchrunsStore = "TORCHELASTIC_USE_AGENT_STORE";
// Set by torchrun: the file to which a failing rank writes its reason, as JSON.
inline constexpr const char* kTorchrunsErrorFile = "TORCHELASTIC_ERROR_FILE";

inline constexpr const char* kToken = "LOCKSTEP_TOKEN";           // the job's secret
inline constexpr const char* kTokenFile = "LOCKSTEP_TOKEN_FILE";  // or a file that holds it
// "1": allow addresses other than loopback without a token.
inline constexpr const char* kInsecure = "LOCKSTEP_INSECURE";
inline constexpr const char* kBackend = "LOCKSTEP_BACKEND";      // host (default)
inline constexpr const char* kTransport = "LOCKSTEP_TRANSPORT";  // auto (default), shm, tcp, hierarchical
// A name or address; default: of the route to MASTER_ADDR.
inline constexpr const char* kInterface = "LOCKSTEP_INTERFACE";
// For tests and experiments: ranks with different values share no memory.
inline constexpr const char* kNode = "LOCKSTEP_NODE";
inline constexpr const char* kTimeout = "LOCKSTEP_TIMEOUT_S";             // a collective's deadline, default 300
inline constexpr const char* kStoreTimeout = "LOCKSTEP_STORE_TIMEOUT_S";  // rendezvous deadline, default 60
// Time without heartbeats until a rank counts as lost, default 30.
inline constexpr const char* kStallTimeout = "LOCKSTEP_STALL_TIMEOUT_S";
// File that bench/all_reduce --tune wrote; rank 0's value applies.
inline constexpr const char* kTuning = "LOCKSTEP_TUNING";
inline constexpr const char* kReduceOrder = "LOCKSTEP_REDUCE_ORDER";  // order of sums on the CPU: rank (default), tree
inline constexpr const char* kFlightDir = "LOCKSTEP_FLIGHT_DIR";  // folder for flight records; unset: none are written
// "0": do not install handlers for SIGUSR1 and SIGTERM.
inline constexpr const char* kFlightSignal = "LOCKSTEP_FLIGHT_SIGNAL";
inline constexpr const char* kLogLevel = "LOCKSTEP_LOG_LEVEL";  // trace, debug, info (default), warn, error
inline constexpr const char* kData = "LOCKSTEP_DATA";           // folder that holds the data sets
// auto (default: the GPU of the local rank, if any), cpu, cuda, cuda:N.
inline constexpr const char* kDevice = "LOCKSTEP_DEVICE";
// Division into logical devices: cpu:2x, cuda:0:1G+3G.
inline constexpr const char* kLogicalDevices = "LOCKSTEP_LOGICAL_DEVICES";
inline constexpr const char* kGpuMemory = "LOCKSTEP_GPU_MEMORY";      // grow (default), all, 8G (at most), all:8G
inline constexpr const char* kCudaLibrary = "LOCKSTEP_CUDA_LIBRARY";  // path of liblockstep_cuda.so
inline constexpr const char* kNcclLibrary = "LOCKSTEP_NCCL_LIBRARY";  // file name of NCCL, default libnccl.so.2
// "1": NCCL calls block the calling thread, and are monitored.
inline constexpr const char* kNcclBlocking = "LOCKSTEP_NCCL_BLOCKING";
// Set by lockrun --share-gpu K: number of ranks that share one GPU.
inline constexpr const char* kShareGpu = "LOCKSTEP_SHARE_GPU";
// "1": on GPUs a run has the same bits as the last one, and float32 convolutions its precision; "0" (default): speed,
// by the precision that is also PyTorch's default. The next four variables choose single parts of it.
inline constexpr const char* kDeterministic = "LOCKSTEP_DETERMINISTIC";
// "1": the GPU computes float32 products and convolutions in TF32; "0": neither.
inline constexpr const char* kTf32 = "LOCKSTEP_TF32";
// "0": use cuDNN's first choice instead of the fastest measured, which may differ from run to run, also with
// LOCKSTEP_DETERMINISTIC=1.
inline constexpr const char* kCudnnAutotune = "LOCKSTEP_CUDNN_AUTOTUNE";
// Seconds in which cuDNN's engines may be built and measured, default 60.
inline constexpr const char* kCudnnTuning = "LOCKSTEP_CUDNN_TUNING_S";
// "1": results of convolutions and of attention's backward may differ from run to run; "0": they may not.
inline constexpr const char* kCudnnNondeterministic = "LOCKSTEP_CUDNN_NONDETERMINISTIC";
// Workspace of one product or convolution, default 64.
inline constexpr const char* kCudaWorkspace = "LOCKSTEP_CUDA_WORKSPACE_MIB";
// Set by lockrun: columns of its terminal, absent in a log.
inline constexpr const char* kTerminalWidth = "LOCKSTEP_TERMINAL_WIDTH";
// Set by lockrun --max-restarts N: how often it has restarted the job, see launch::attempt(); and N.
inline constexpr const char* kRestartCount = "LOCKSTEP_RESTART_COUNT";
inline constexpr const char* kMaxRestarts = "LOCKSTEP_MAX_RESTARTS";
// Set with them: what only this attempt has, so that its ranks join no other.
inline constexpr const char* kAttempt = "LOCKSTEP_ATTEMPT";
// Set by torchrun and Slurm: how often the job has been restarted.
inline constexpr const char* kTorchrunsRestartCount = "TORCHELASTIC_RESTART_COUNT";
inline constexpr const char* kSlurmsRestartCount = "SLURM_RESTART_COUNT";
// Set by lockrun: the memory in which a rank notes its steps.
inline constexpr const char* kProgress = "LOCKSTEP_PROGRESS";
// Set by spawn() for its ranks: which call of the program they run, and its arguments.
inline constexpr const char* kSpawnCall = "LOCKSTEP_SPAWN_CALL";
// Variables of the strategy parameter_server; set by lockrun --ps P --workers W, or by hand for each process.
inline constexpr const char* kJob = "LOCKSTEP_JOB";               // ps: holds parameters; worker: computes
inline constexpr const char* kTaskIndex = "LOCKSTEP_TASK_INDEX";  // number of this process within its job, from 0
inline constexpr const char* kNumPs = "LOCKSTEP_NUM_PS";          // number of processes in each job
inline constexpr const char* kNumWorkers = "LOCKSTEP_NUM_WORKERS";
// Set by lockrun: "1" if it serves the store itself.
inline constexpr const char* kStoreHosted = "LOCKSTEP_STORE_HOSTED";
// Set by lockrun: port of the store at MASTER_ADDR; MASTER_PORT stays free.
inline constexpr const char* kStorePort = "LOCKSTEP_STORE_PORT";

inline constexpr const char* kIsa = "LOCKSTEP_ISA";  // baseline, avx2, avx512, amx: the highest instruction set to use
// Delay that backend `delay` adds to every message.
inline constexpr const char* kDelayAlpha = "LOCKSTEP_DELAY_ALPHA_US";
inline constexpr const char* kDelayBandwidth = "LOCKSTEP_DELAY_GBPS";  // and the bandwidth, in GB/s, that it simulates

// Sockets to each peer for collectives over TCP: 1 to 16, default 2, with more than 16 ranks 1. Rank 0's value applies.
inline constexpr const char* kSocketsPerPeer = "LOCKSTEP_SOCKETS_PER_PEER";

// The prefix of the names of Lockstep's own variables.
inline constexpr const char* kPrefix = "LOCKSTEP_";

// The value, or nullopt if unset or empty.
std::optional<std::string> text(const char* name);

// The value as an integer in [low, high], or nullopt if unset. Throws InvalidArgument that names the variable and its
// value if it is not an integer or out of range.
std::optional<long> integer(const char* name, long low, long high);

// Parses a value that the caller already has; `name` is used in messages.
long parse_integer(const char* name, const std::string& value, long low, long high);

}  // namespace lockstep::env
#pragma GCC visibility pop
