// The messages between servers and workers of `parameter_server`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

// The group over which a server and a worker send messages, and the peer's rank in it.
struct Link {
  std::shared_ptr<ProcessGroup> group;
  int peer = -1;
};

// From a worker to a server.
struct Notice {
  enum class Kind : std::int32_t {
    kWeights = 1,  // from worker 0 before its first step, or when it has changed its model: its weights follow, to ps:0
                   // the rest of its state, and the optimizer's state if `has_state`; it expects an Answer
    kJoins,        // from any other worker then: it requests the weights and the rest
    kStep,         // a step begins: its gradients follow when they are complete, and the worker expects the weights
    kComplete,     // to ps:0, with backup workers: all servers have this step's gradients, or will have them
    kFetch,        // it requests the optimizer's state, and unless a step is the same for all, the weights
    kFetchRate,    // to ps:0: it requests the learning rate
    kFetchStop,    // it requests whether to stop early, and passes on its own signals
    kCallEnded,    // see CallServer and CallWorker
    kFinished,
  };
  Kind kind = Kind::kStep;
  float lr = 0;  // valid if has_lr
  std::int32_t has_lr = 0;
  std::int16_t has_state = 0;
  std::int16_t is_stop_requested = 0;  // for kFetchStop
  std::int64_t step = 0;               // from 1: this worker's, or with backup workers that of ps:0
};
static_assert(std::is_trivially_copyable_v<Notice> && sizeof(Notice) == 24);

// From ps:0 to a worker, with the weights; from any server when it has taken weights.
struct Answer {
  std::int64_t global_step = 0;
  std::int64_t dropped = 0;  // gradients of this worker
};
static_assert(std::is_trivially_copyable_v<Answer> && sizeof(Answer) == 16);

// The group belongs to the user: tags that no program uses by chance.
inline constexpr int kNoticeTag = 0x70730001, kFloatsTag = 0x70730002, kRestTag = 0x70730003, kAnswerTag = 0x70730004,
                     kStateTag = 0x70730005, kDecisionTag = 0x70730006, kResultTag = 0x70730007, kRateTag = 0x70730008,
                     kStopTag = 0x70730009;

// Texts of any length.
void send_text(const Link& link, std::string_view text, int tag);
std::string receive_text(const Link& link, int tag, const CallOptions& call = {});

// Frozen parameters and buffers, which the servers' floats do not have. As bytes they follow each other in the order of
// the model.
std::vector<NamedTensor> rest_of(const Replica& replica);
std::vector<std::byte> bytes_of(const std::vector<NamedTensor>& tensors);
void set_to_bytes(const std::vector<NamedTensor>& tensors, const std::vector<std::byte>& bytes);

}  // namespace lockstep::train
