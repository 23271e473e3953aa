#include "src/launch/node_link.h"

#include <poll.h>

namespace lockstep::launch {

void NodeLink::part() {
  while (!may_leave()) {
    std::vector<pollfd> polled;
    add_descriptors(polled);
    ::poll(polled.data(), polled.size(), kLookMs);
    move();
  }
}

}  // namespace lockstep::launch
