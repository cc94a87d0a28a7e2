#include "forebay/env/subprocess/confine.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace forebay::env {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
constexpr uint32_t kOtherCalls = 0x40000000;  // of x32: the same calls by other numbers
#else
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
constexpr uint32_t kOtherCalls = 0xFFFFFFFF;  // none
#endif

// As seccomp(2) takes it. Jumps count the instructions that they pass.
constexpr sock_filter Load(size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
}
constexpr sock_filter If(uint16_t test, uint32_t value, uint8_t then, uint8_t otherwise) {
  return BPF_JUMP(BPF_JMP | test | BPF_K, value, then, otherwise);
}
constexpr sock_filter Return(uint32_t what) { return BPF_STMT(BPF_RET | BPF_K, what); }

constexpr std::array kConfined = {
    Load(offsetof(seccomp_data, arch)),
    If(BPF_JEQ, kArchitecture, 0, 17),
    Load(offsetof(seccomp_data, nr)),
    If(BPF_JGE, kOtherCalls, 15, 0),
    If(BPF_JEQ, SYS_memfd_create, 14, 0),
    If(BPF_JEQ, SYS_memfd_secret, 13, 0),
    If(BPF_JEQ, SYS_shmget, 12, 0),
    If(BPF_JEQ, SYS_semget, 11, 0),
    If(BPF_JEQ, SYS_msgget, 10, 0),
    If(BPF_JEQ, SYS_io_uring_setup, 9, 0),
    If(BPF_JEQ, SYS_socket, 1, 0),
    If(BPF_JEQ, SYS_socketpair, 0, 6),
    Load(offsetof(seccomp_data, args)),  // the family: its low word comes first
    If(BPF_JEQ, AF_UNIX, 4, 0),
    If(BPF_JEQ, AF_INET, 3, 0),
    If(BPF_JEQ, AF_INET6, 2, 0),
    If(BPF_JEQ, AF_NETLINK, 1, 0),
    Return(SECCOMP_RET_ERRNO | EAFNOSUPPORT),
    Return(SECCOMP_RET_ALLOW),
    Return(SECCOMP_RET_ERRNO | ENOSYS),
};

}  // namespace

std::span<const sock_filter> ConfineFilter() { return kConfined; }

}  // namespace forebay::env
