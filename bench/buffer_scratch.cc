#include "bench/buffer_scratch.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::bench {
namespace {

namespace fs = std::filesystem;
constexpr char kPrefix[] = "bench_buffer.";  // then the process that owns it

void RemoveLeftOvers(const fs::path& parent) {
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const int pid = std::atoi(name.c_str() + sizeof(kPrefix) - 1);
    const bool gone = pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
    std::error_code ignored;
    if (gone) fs::remove_all(it->path(), ignored);
  }
}

}  // namespace

ScratchFolder::ScratchFolder(std::string path) : path_(std::move(path)) {}
ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")) {}
ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

Result<ScratchFolder> ScratchFolder::Create() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return Internal("cannot read /proc/self/exe: " + error.message());
  const fs::path parent = program.parent_path();
  RemoveLeftOvers(parent);
  ScratchFolder folder((parent / (kPrefix + std::to_string(getpid()))).string());
  FB_RETURN_IF_ERROR(MakeFolders(folder.path()));
  struct statfs stats = {};
  if (statfs(folder.path().c_str(), &stats) != 0) return ErrnoStatus("statfs", errno);
  if (stats.f_type == TMPFS_MAGIC || stats.f_type == RAMFS_MAGIC) {
    return FailedPrecondition(folder.path() +
                              " is memory, not a disk: nothing there is durable; build on a disk");
  }
  return folder;
}

}  // namespace forebay::bench
