// Sockets of the service: connecting and tuning.
#pragma once

#include <string_view>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/socket.h"
#include "forebay/base/status.h"

namespace forebay::buffer {

// Addresses and listening are base's (also IsLoopback).
using Address = SocketAddress;
inline Result<Address> ParseAddress(std::string_view text) { return ParseSocketAddress(text); }
inline Result<Fd> Listen(Address& address) { return ListenOn(address); }

// Connected and non-blocking, with large buffers, or kUnavailable / kDeadlineExceeded.
Result<Fd> ConnectSocket(const Address& address, TimePoint deadline);

// Large buffers, no delay, keepalive.
void TuneSocket(int fd, bool is_unix);

// Waits until fd is readable / writable or the deadline has passed (false).
bool WaitReadable(int fd, TimePoint deadline);
bool WaitWritable(int fd, TimePoint deadline);

}  // namespace forebay::buffer
