// Goal: the sandbox of the Python package refuses the same system calls as ours.
#include "forebay/env/subprocess/confine.h"

#include <gtest/gtest.h>
#include <linux/filter.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/program.h"
#include "forebay/env/tools_testing.h"

namespace forebay::env {
namespace {

TEST(Confine, ThePythonPackageHasTheSameFilter) {
  const auto loop = MakeLoop();
  const auto end = Await(
      *loop,
      RunProgram(*loop,
                 {.command = {"python3", "-B", "-c",
                              "from forebay import _seccomp; print(_seccomp.program().hex())"},
                  .environment = {{"PYTHONPATH", FOREBAY_SOURCE_DIR "/python"}}},
                 loop->Now() + std::chrono::seconds(120), nullptr));
  ASSERT_TRUE(end.ok()) << end.status().ToString();
  ASSERT_TRUE(end->ok) << end->how << end->errors;
  std::string ours;
  for (const std::byte byte : std::as_bytes(ConfineFilter())) {
    ours += "0123456789abcdef"[static_cast<size_t>(byte) >> 4];
    ours += "0123456789abcdef"[static_cast<size_t>(byte) & 15];
  }
  EXPECT_EQ(end->output, ours);
}

}  // namespace
}  // namespace forebay::env
