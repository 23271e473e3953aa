// A connection to a store that has proved the token "t" without the client, so that tests can send invalid requests.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "src/comm/net/socket.h"
#include "src/comm/store/store_protocol.h"

namespace lockstep {

inline Fd connect_as_member(const Endpoint& at, Deadline deadline) {
  std::string why;
  Fd fd = try_connect_tcp(at.host, at.port, deadline, why);
  store_protocol::Hello hello;
  EXPECT_EQ(receive_all(fd.get(), std::as_writable_bytes(std::span(&hello, 1)), deadline), IoResult::kDone);
  store_protocol::ClientProof client{store_protocol::kMagic, {}, {}};
  client.proof = prove("t", Role::kStoreClient, client.client_nonce, hello.server_nonce);
  send_all(fd.get(), std::as_bytes(std::span(&client, 1)), deadline);
  store_protocol::ServerProof proof;
  EXPECT_EQ(receive_all(fd.get(), std::as_writable_bytes(std::span(&proof, 1)), deadline), IoResult::kDone);
  EXPECT_EQ(proof.accepted, 1u);
  return fd;
}

}  // namespace lockstep
