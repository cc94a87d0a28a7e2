// The parts that the recovery benchmarks play in processes of their own.
#pragma once

namespace forebay::bench {

// The first argument of a program that is to play a part (RoleProcess::Start).
inline constexpr char kRecoveryRoleWord[] = "recovery-role";
// Plays it: arguments from the third on say which. Most never return. The exit code otherwise.
int RunRecoveryRole(int argc, char** argv);

// ---- each by itself: `args` after its name
int ServeRole(int argc, char** args);
int WriteRole(int argc, char** args);
int LearnRole(int argc, char** args);
int FillRole(int argc, char** args);
int OpenRole(int argc, char** args);

}  // namespace forebay::bench
