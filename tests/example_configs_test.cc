// Goal: every configuration in examples/ is one that the program takes, and names files that exist.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "forebay/control/config.h"

namespace forebay {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> Examples() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(FOREBAY_SOURCE_DIR "/examples")) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  }
  return files;
}

TEST(ExampleConfigs, EachOneLoads) {
  const std::vector<fs::path> files = Examples();
  EXPECT_GE(files.size(), 9U);
  for (const fs::path& file : files) {
    const auto config = control::LoadConfig(file.string(), {});
    EXPECT_TRUE(config.ok()) << file << ": " << config.status().ToString();
  }
}

TEST(ExampleConfigs, TheFilesOfTheirCommandsExist) {
  for (const fs::path& file : Examples()) {
    const auto config = control::LoadConfig(file.string(), {});
    ASSERT_TRUE(config.ok()) << file;
    for (const std::string& word : config->env.command) {
      const bool is_file = word.ends_with(".py") || word.ends_with(".sh");
      EXPECT_TRUE(!is_file || fs::exists(file.parent_path() / word)) << file << ": " << word;
    }
    for (const std::string& folder : config->env.python_path) {
      EXPECT_TRUE(fs::is_directory(config->Resolve(folder))) << file << ": " << folder;
    }
  }
}

}  // namespace
}  // namespace forebay
