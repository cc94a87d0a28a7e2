#include "forebay/env/subprocess_testing.h"

#include <dirent.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/loop.h"
#include "forebay/base/task.h"
#include "forebay/env/subprocess.h"

namespace forebay::env {

void RunToEnd(Loop& loop, Task<void> task) {
  loop.Spawn(std::move(task), [&loop] { loop.Stop(); });
  loop.Run();
}

int OpenDescriptors() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                        std::filesystem::directory_iterator()));
}

int Children() {
  int children = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "children");
    children += static_cast<int>(
        std::distance(std::istream_iterator<int>(file), std::istream_iterator<int>()));
  }
  return children;
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "forebay_env_XXXXXX").string();
  FB_CHECK(mkdtemp(name.data()) != nullptr, "a temporary folder");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::Write(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path) << text;
  return path;
}

SubprocessOptions SdkOptions(const TempFolder& folder, const std::string& body) {
  const std::string script = folder.Write(
      "env.py", "import os, signal, sys, time\nfrom forebay import *\n" + body + "\nserve(Env)\n");
  return {.command = {"python3", script},
          .environment = {{"PYTHONPATH", FOREBAY_TEST_PYTHON}, {"PYTHONDONTWRITEBYTECODE", "1"}},
          .episodes_per_process = 8};
}

SubprocessOptions RawOptions(const TempFolder& folder, const std::string& body) {
  const std::string script =
      folder.Write("raw.py", R"(import json, os, signal, subprocess, sys, time
def raw(text):
    sys.stdout.write(text)
    sys.stdout.flush()
def say(reply): raw(json.dumps(reply) + "\n")
def hear():
    line = sys.stdin.readline()
    if not line: sys.exit(0)
    return json.loads(line)
hello = hear()
)" + body);
  return {.command = {"python3", script}, .episodes_per_process = 8};
}

}  // namespace forebay::env
