// SPDX-License-Identifier: Apache-2.0
#include "evolve/isolation/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace octavo::evolve {
namespace {

void limit(int resource, std::uint64_t value) {
  struct rlimit now {};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &now) != 0) return;
  const rlim_t most = std::min<rlim_t>(value, now.rlim_max);
  const struct rlimit wanted { most, most };
  (void)setrlimit(static_cast<__rlimit_resource_t>(resource), &wanted);
}

void set_limits(const Limits& limits) {
  constexpr double kProcessorShare = 4;  // several threads may compute at once
  constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 30;
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, static_cast<std::uint64_t>(std::ceil(limits.seconds * kProcessorShare)) + 1);
  const bool writes = !limits.directory.empty() || limits.network || limits.gpu;
  limit(RLIMIT_FSIZE, writes ? kMostFileBytes : 0);
  // The driver of a GPU reserves terabytes of addresses.
  if (!limits.gpu) limit(RLIMIT_AS, limits.memory_bytes);
}

bool write_text(const char* path, const std::string& text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  return written;
}

// Programs that talk to themselves, as compute-sanitizer does, need the loopback device.
void start_loopback() {
  const int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (any < 0) return;
  struct ifreq device {};
  std::memcpy(device.ifr_name, "lo", sizeof("lo"));
  device.ifr_flags = IFF_UP;
  (void)ioctl(any, SIOCSIFFLAGS, &device);
  close(any);
}

// Without privileges a namespace of mounts or network needs one of users, in which hardware
// counters are not allowed, so not with a GPU.
bool enter_namespaces(const Limits& limits, int wanted) {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(wanted) == 0) return true;
  if (limits.gpu || unshare(wanted | CLONE_NEWUSER) != 0) return false;
  (void)write_text("/proc/self/setgroups", "deny");
  (void)write_text("/proc/self/uid_map", fmt::format("{} {} 1", user, user));
  (void)write_text("/proc/self/gid_map", fmt::format("{} {} 1", group, group));
  return true;
}

#ifdef SYS_mount_setattr
bool set_read_only(const char* path, bool read_only, unsigned flags) {
  struct mount_attr attributes {};
  (read_only ? attributes.attr_set : attributes.attr_clr) = MOUNT_ATTR_RDONLY;
  return syscall(SYS_mount_setattr, AT_FDCWD, path, flags, &attributes, sizeof(attributes)) == 0;
}
#else
bool set_read_only(const char*, bool, unsigned) { return false; }
#endif

bool make_files_read_only(const std::string& writable, bool gpu) {
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  // A GPU's driver may want to make files in shared memory: it gets a file system of its own there.
  constexpr const char* kShared = "/dev/shm";
  const bool shared = gpu && mount("tmpfs", kShared, "tmpfs", 0, "size=256m") == 0;
  const char* const directory = writable.c_str();
  if (!writable.empty() && mount(directory, directory, nullptr, MS_BIND, nullptr) != 0)
    return false;
  if (!set_read_only("/", true, AT_RECURSIVE)) return false;
  if (shared && !set_read_only(kShared, false, 0)) return false;
  return writable.empty() || set_read_only(directory, false, 0);
}

// --- system calls
// ---------------------------------------------------------------------------------

struct NamedCall {
  int number;
  const char* name;
};
#define OCTAVO_CALL(name) \
  { SYS_##name, #name }
constexpr NamedCall kForbidden[] = {
#ifdef SYS_fork
    OCTAVO_CALL(fork),
    OCTAVO_CALL(vfork),
    OCTAVO_CALL(creat),
    OCTAVO_CALL(unlink),
    OCTAVO_CALL(rename),
    OCTAVO_CALL(mkdir),
    OCTAVO_CALL(rmdir),
    OCTAVO_CALL(link),
    OCTAVO_CALL(symlink),
    OCTAVO_CALL(chmod),
    OCTAVO_CALL(chown),
    OCTAVO_CALL(mknod),
#endif
    OCTAVO_CALL(execve),
    OCTAVO_CALL(execveat),
    OCTAVO_CALL(unlinkat),
    OCTAVO_CALL(renameat2),
    OCTAVO_CALL(mkdirat),
    OCTAVO_CALL(linkat),
    OCTAVO_CALL(symlinkat),
    OCTAVO_CALL(mknodat),
    OCTAVO_CALL(fchmodat),
    OCTAVO_CALL(fchownat),
    OCTAVO_CALL(truncate),
    OCTAVO_CALL(ftruncate),
    OCTAVO_CALL(socket),
    OCTAVO_CALL(socketpair),
    OCTAVO_CALL(connect),
    OCTAVO_CALL(kill),
    OCTAVO_CALL(tkill),
    OCTAVO_CALL(ptrace),
    OCTAVO_CALL(process_vm_readv),
    OCTAVO_CALL(process_vm_writev),
    OCTAVO_CALL(bpf),
    OCTAVO_CALL(mount),
    OCTAVO_CALL(umount2),
    OCTAVO_CALL(setns),
    OCTAVO_CALL(unshare),
    OCTAVO_CALL(perf_event_open),
    OCTAVO_CALL(memfd_create),
    OCTAVO_CALL(shmget),
    OCTAVO_CALL(msgget),
    OCTAVO_CALL(semget),
    OCTAVO_CALL(keyctl),
    OCTAVO_CALL(setsid),
    OCTAVO_CALL(setpgid),
    OCTAVO_CALL(personality),
    OCTAVO_CALL(pidfd_open),
    OCTAVO_CALL(io_uring_setup),
    OCTAVO_CALL(userfaultfd),
    OCTAVO_CALL(setpriority),
};
constexpr NamedCall kOfArguments[] = {
    OCTAVO_CALL(clone),
    OCTAVO_CALL(openat),
#ifdef SYS_open
    OCTAVO_CALL(open),
#endif
};
#undef OCTAVO_CALL

int forbidden_report = -1;

// Only functions that a signal handler may call.
void on_forbidden_call(int, siginfo_t* info, void*) {
  char text[sizeof(kForbiddenMark) - 1 + sizeof(int)];
  std::memcpy(text, kForbiddenMark, sizeof(kForbiddenMark) - 1);
  const int number = info->si_syscall;
  std::memcpy(text + sizeof(kForbiddenMark) - 1, &number, sizeof(number));
  (void)!write(forbidden_report, text, sizeof(text));
  std::_Exit(kForbiddenExit);
}

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;
#endif

class Filter {
 public:
  static constexpr std::uint32_t kTrap = SECCOMP_RET_TRAP, kAllow = SECCOMP_RET_ALLOW;

  Filter() {
    load(offsetof(seccomp_data, arch));
    unless_equal(kArchitecture, SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
    constexpr std::uint32_t kX32 = 0x40000000;  // another numbering of the same calls
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1));
    answer(SECCOMP_RET_KILL_PROCESS);
#endif
    for (const NamedCall& call : kForbidden)
      if_equal(static_cast<std::uint32_t>(call.number), kTrap);
    // Its flags are in memory, which a filter cannot read; libraries then use clone and openat.
    if_equal(SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
    if_equal(SYS_openat2, SECCOMP_RET_ERRNO | ENOSYS);
    constexpr std::uint32_t kWrites = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;
    if_flags(SYS_openat, 2, kWrites, true);
#ifdef SYS_open
    if_flags(SYS_open, 1, kWrites, true);
#endif
    if_flags(SYS_clone, 0, CLONE_THREAD, false);  // threads are allowed
    answer(kAllow);
  }

  bool install() {
    if (kArchitecture == 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
    const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  }

 private:
  void load(std::size_t offset) {
    code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)));
  }
  void answer(std::uint32_t what) { code_.push_back(BPF_STMT(BPF_RET | BPF_K, what)); }
  void if_equal(std::uint32_t value, std::uint32_t what) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
    answer(what);
  }
  void unless_equal(std::uint32_t value, std::uint32_t what) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0));
    answer(what);
  }
  // Refuses the call if an argument has one of these flags, or has none of them.
  void if_flags(std::uint32_t number, std::size_t argument, std::uint32_t flags, bool refused) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4));
    load(offsetof(seccomp_data, args) + argument * sizeof(std::uint64_t));
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, flags, 0, 1));
    answer(refused ? kTrap : kAllow);
    answer(refused ? kAllow : kTrap);
  }

  std::vector<sock_filter> code_;
};

}  // namespace

std::vector<std::string> enter_sandbox(const Limits& limits) {
  std::vector<std::string> missing;
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  set_limits(limits);
  const bool network = limits.isolation.own_network && !limits.network;
  const bool files = limits.isolation.own_files;
  const int wanted = (network ? CLONE_NEWNET : 0) | (files ? CLONE_NEWNS : 0);
  const bool entered = wanted != 0 && enter_namespaces(limits, wanted);
  if (entered && network) start_loopback();
  if (!limits.network && !(entered && network))
    missing.emplace_back("a network namespace of its own");
  if (!(entered && files) || !make_files_read_only(limits.directory, limits.gpu))
    missing.emplace_back("a read-only view of the files");
  return missing;
}

bool forbid_calls(int report_to) {
  forbidden_report = report_to;
  struct sigaction action {};
  action.sa_sigaction = on_forbidden_call;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return false;
  return Filter().install();
}

std::string name_of_call(int number) {
  for (const NamedCall& call : kForbidden)
    if (call.number == number) return call.name;
  for (const NamedCall& call : kOfArguments)
    if (call.number == number) return call.name;
  return fmt::format("number {}", number);
}

}  // namespace octavo::evolve
