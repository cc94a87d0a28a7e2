// Goal: what a program has started ends with it, also if nobody is left to see that it has ended,
// and how it ended is what is reported.
#include "apps/lifeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/clock.h"

namespace forebay::apps {
namespace {

// Leads a group, as what wraps expects.
pid_t Start(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    execv(words[0], words.data());
    _exit(99);
  }
  return pid;
}

int StatusOf(pid_t pid) {
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

// Members of the group that are not zombies.
int Members(pid_t group) {
  int out = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (!std::getline(file, line) || line.rfind(") ") == std::string::npos) continue;
    char state = 0;
    long parent = 0, of = 0;
    if (sscanf(line.c_str() + line.rfind(") ") + 2, "%c %ld %ld", &state, &parent, &of) != 3)
      continue;
    if (of == group && state != 'Z') ++out;
  }
  return out;
}

bool Empties(pid_t group) {
  const TimePoint deadline = Now() + std::chrono::seconds(60);
  while (Members(group) > 0 && Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const bool empty = Members(group) == 0;
  kill(-group, SIGKILL);  // a failed test leaves nothing either
  return empty;
}

std::vector<std::string> Shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

TEST(LifelineTest, NothingThatAProgramLeavesBehindOutlivesIt) {
  const Lifeline lifeline = Lifeline::Create().value();
  // A child, a grandchild, and one whose name looks like the fields after it.
  const pid_t pid = Start(lifeline.Wrap(
      Shell("sleep 3600 & (sleep 3600 & sleep 3600) & "
            "cp /bin/sleep \"${TMPDIR:-/tmp}/x) S 1 1\" && \"${TMPDIR:-/tmp}/x) S 1 1\" 3600 & "
            "sleep 0.2; rm -f \"${TMPDIR:-/tmp}/x) S 1 1\"; exit 3")));
  const int status = StatusOf(pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
  // Nobody has killed the group: whoever started it may have died in this moment.
  EXPECT_TRUE(Empties(pid));
}

TEST(LifelineTest, EverythingEndsWithTheOneThatHoldsTheLine) {
  std::optional<Lifeline> lifeline = Lifeline::Create().value();
  const pid_t pid = Start(lifeline->Wrap(Shell("sleep 3600 & sleep 3600")));
  const TimePoint deadline = Now() + std::chrono::seconds(60);
  while (Members(pid) < 4 && Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(Members(pid), 4);
  lifeline.reset();
  const int status = StatusOf(pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_TRUE(Empties(pid));
}

TEST(LifelineTest, HowTheProgramEndedIsReported) {
  const Lifeline lifeline = Lifeline::Create().value();
  EXPECT_EQ(WEXITSTATUS(StatusOf(Start(lifeline.Wrap({"/bin/true"})))), 0);
  EXPECT_EQ(WEXITSTATUS(StatusOf(Start(lifeline.Wrap(Shell("exit 41"))))), 41);
  EXPECT_EQ(WEXITSTATUS(StatusOf(Start(lifeline.Wrap({"/no/such/program"})))), 127);
  const int status = StatusOf(Start(lifeline.Wrap(Shell("kill -s TERM $$"))));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

}  // namespace
}  // namespace forebay::apps
