#include "apps/lifeline.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::apps {
namespace {

// $1 is the pipe, the rest the command. The command runs in the foreground: a shell gives what runs
// in the background no standard input and lets it ignore interrupts. A signal that ended it ends
// the shell too, so that what is reported is how the command ended.
//
// What the command has left behind in the group ($$ leads it) is killed here, before the one that
// waits for the pipe: from then on until we see the shell's end, nobody would do it if we were
// killed. The fourth field of stat, the second after the name in parentheses, is the parent; the
// next one the group.
constexpr const char* kScript = R"(exec 3<"$1" || exit 126
shift
command -v -- "$1" >/dev/null || { echo "there is no program '$1' to run" >&2; exit 127; }
{ read -r _; kill -s KILL 0; } <&3 >/dev/null 2>&1 &
"$@" 3<&-
code=$?
for process in /proc/[0-9]*; do
  id=${process#/proc/}
  [ "$id" = $$ ] || [ "$id" = $! ] || {
    read -r fields <"$process/stat" && set -- ${fields##*") "} && [ "$3" = $$ ] && kill -s KILL "$id"
  }
done 2>/dev/null
kill -s KILL $!
wait $! 2>/dev/null
case $code in 134|135|136|137|139|143) kill -s $((code - 128)) $$ ;; esac
exit $code
)";

}  // namespace

Result<Lifeline> Lifeline::Create() {
  std::array<int, 2> fds{};
  if (pipe2(fds.data(), O_CLOEXEC) != 0) return ErrnoStatus("cannot make a pipe", errno);
  return Lifeline(Fd(fds[0]), Fd(fds[1]));
}

std::vector<std::string> Lifeline::Wrap(const std::vector<std::string>& command) const {
  std::vector<std::string> out = {"/bin/sh", "-c", kScript, "sh",
                                  fmt::format("/proc/{}/fd/{}", getpid(), reads_.get())};
  out.insert(out.end(), command.begin(), command.end());
  return out;
}

}  // namespace forebay::apps
