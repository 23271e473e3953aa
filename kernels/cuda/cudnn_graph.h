// Common parts of operators that cuDNN's graphs compute: element types, errors that mean that there is no engine, and
// graphs by shape.
#pragma once

#include <cudnn_frontend.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/stream.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

inline cudnn_frontend::DataType_t graph_type(DType type) {
  switch (type) {
    case DType::kFloat32: return cudnn_frontend::DataType_t::FLOAT;
    case DType::kFloat16: return cudnn_frontend::DataType_t::HALF;
    case DType::kBFloat16: return cudnn_frontend::DataType_t::BFLOAT16;
    default: throw_no_float(type);
  }
}

// True if cuDNN has no engine for a graph; every other error is one of the driver, of memory, or ours. What cuDNN
// itself refuses while the operation graph is built comes back as an error of its interface that names the status.
inline bool is_without_engine(cudnn_frontend::error_t result) {
  using cudnn_frontend::error_code_t;
  switch (result.get_code()) {
    case error_code_t::GRAPH_NOT_SUPPORTED:
    case error_code_t::HEURISTIC_QUERY_FAILED:
    case error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED: return true;
    case error_code_t::CUDNN_BACKEND_API_FAILED:
      return result.get_message().find("CUDNN_STATUS_NOT_SUPPORTED") != std::string::npos;
    default: return false;
  }
}

// The built graphs of one thread (handles belong to threads), up to `most`: then the least recently used one is dropped
// when its GPU has finished, unless a CUDA graph may hold its kernels, which cuDNN compiled for it and unloads with it.
// Those, and what a thread has when it ends, are kept for the life of the process.
template <typename Key, typename BuiltGraph> class RecentGraphs {
 public:
  explicit RecentGraphs(std::size_t most) : most_(most) {}
  RecentGraphs(const RecentGraphs&) = delete;
  RecentGraphs& operator=(const RecentGraphs&) = delete;
  ~RecentGraphs() {
    for (auto& [key, entry] : entries_) keep_for_ever(std::move(entry.graph));  // its kernels may be running
  }

  // The key's graph, as a unique_ptr that `build()` returns on the first use; null if it returned null. Throws Error,
  // with `what()` as the operator's name, if the first use is captured: an engine cannot be built then.
  template <typename Build, typename What>
  BuiltGraph* get(const Key& key, Stream& stream, const Build& build, const What& what) {
    const bool is_captured = stream.is_capturing();
    auto found = entries_.find(key);
    if (found == entries_.end()) {
      if (is_captured)
        throw Error(
            "{} runs for the first time while a graph is captured, but cuDNN must first build it outside of a graph. "
            "Run the same step once before the capture",
            what());
      std::unique_ptr<BuiltGraph> built = build();
      make_room();
      int device = 0;
      LOCKSTEP_CUDA(cudaGetDevice(&device));
      found = entries_.emplace(key, Entry{std::move(built), device}).first;
    }
    found->second.last_use = ++uses_;
    found->second.is_captured = found->second.is_captured || is_captured;
    return found->second.graph.get();
  }
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::unique_ptr<BuiltGraph> graph;
    int device = 0;
    std::uint64_t last_use = 0;
    bool is_captured = false;
  };

  void make_room() {
    if (entries_.size() < most_) return;
    const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second.is_captured, a.second.last_use) < std::pair(b.second.is_captured, b.second.last_use);
    });
    if (oldest->second.is_captured) return;  // all are
    await_device(oldest->second.device);     // its kernels may still run
    entries_.erase(oldest);
  }

  // Waits for all streams of the GPU. The thread's current device stays as it is.
  static void await_device(int device) {
    int current = 0;
    LOCKSTEP_CUDA(cudaGetDevice(&current));
    if (device != current) LOCKSTEP_CUDA(cudaSetDevice(device));
    LOCKSTEP_CUDA(cudaDeviceSynchronize());
    if (device != current) LOCKSTEP_CUDA(cudaSetDevice(current));
  }

  // A CUDA graph may outlive the thread.
  static void keep_for_ever(std::unique_ptr<BuiltGraph> graph) {
    static std::mutex mutex;
    static auto* const kKept = new std::vector<std::unique_ptr<BuiltGraph>>;
    const std::lock_guard lock(mutex);
    kKept->push_back(std::move(graph));
  }

  std::size_t most_;
  std::uint64_t uses_ = 0;
  std::map<Key, Entry> entries_;
};

}  // namespace lockstep::cuda
