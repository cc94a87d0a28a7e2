// The seccomp filter of sandboxes (ProcessOptions::confine): which system calls fail in them.
#pragma once

#include <linux/filter.h>

#include <span>

namespace forebay::env {

// Refused are sockets but those of Unix, IP and netlink (a namespace of networks does not hold
// others, a virtual machine's host for one); io_uring, which makes sockets without asking; and
// memory that no limit of a process counts (memfd, System V). Also the calls of other
// architectures, by whose numbers the same could be had.
//
// Safe between fork and exec. python/forebay/_seccomp.py has the same program; a test compares
// them.
std::span<const sock_filter> ConfineFilter();

}  // namespace forebay::env
