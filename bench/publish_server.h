// The publish benchmark's other process: an engine that takes weights over a socket.
#pragma once

namespace forebay::bench {

// The first argument of a program that is to be it (RoleProcess::Start).
inline constexpr char kPublishServerWord[] = "publish-server";
// Reports its URL, and then each token of one of its streams: nanoseconds of the clock, version,
// request. Runs until it is killed; else its exit code.
int RunPublishServer();

}  // namespace forebay::bench
