// A transport: one way to move bytes, and the collectives over it. The backend owns one and adds the communication
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/backend.h"
#include "src/comm/call/byte_channels.h"

namespace lockstep {

// One thread at a time may call execute() and allocate(); any thread may call abort(), leave() and counters().
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  // Runs a collective to its end, or throws.
  virtual void execute(const Operation& operation) = 0;
  // Returns when all ranks have made this call, whose data another backend moves; throws the errors of execute().
  virtual void compare(const Operation& operation) = 0;
  // The operation's count is the number of bytes. See Backend::allocate.
  virtual Buffer allocate(const Operation& operation) = 0;
  // See Backend::peer_addresses.
  virtual std::vector<std::byte*> peer_addresses(const void*, std::size_t) const { return {}; }
  // The channels for messages, which are independent of the collectives.
  virtual ByteChannels& channels() = 0;
  virtual void abort(const std::string& reason) = 0;
  virtual void leave() noexcept = 0;
  virtual TransportCounters counters() const = 0;
  // See Backend::on_over; the default is for transports that have no failure detector.
  virtual void on_over(std::function<void(const std::string& why)>) {}
};

}  // namespace lockstep
