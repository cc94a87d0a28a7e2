// Finding and loading plugin files, and what is said of files that are none.
#include "forebay/xla/pjrt/plugin.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/pjrt/client_testing.h"

namespace forebay::xla {
namespace {

using ::testing::HasSubstr;

class PluginTest : public ::testing::Test {
 protected:
  PluginTest() {
    if (const char* value = std::getenv("FOREBAY_PJRT_PLUGIN")) saved_ = value;
  }
  ~PluginTest() override {
    if (saved_) {
      ::setenv("FOREBAY_PJRT_PLUGIN", saved_->c_str(), 1);
    } else {
      ::unsetenv("FOREBAY_PJRT_PLUGIN");
    }
  }
  TemporaryFolder folder_;

 private:
  std::optional<std::string> saved_;
};

TEST_F(PluginTest, AMissingFileIsNotFound) {
  const Status status = Client::Create({.plugin_path = "/no/such/plugin.so"}).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("/no/such/plugin.so"));
  EXPECT_THAT(status.message(), HasSubstr("tools/setup"));
  // A folder is no file.
  EXPECT_EQ(FindPlugin(folder_.path()).status().code(), StatusCode::kNotFound);
}

TEST_F(PluginTest, TheEnvironmentNamesAPlugin) {
  const std::string file = folder_.path() / "other.so";
  std::ofstream(file) << "x";
  ::setenv("FOREBAY_PJRT_PLUGIN", file.c_str(), 1);
  EXPECT_EQ(FindPlugin("").value(), file);
  ::setenv("FOREBAY_PJRT_PLUGIN", "/no/such/plugin.so", 1);
  const Status status = FindPlugin("").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("FOREBAY_PJRT_PLUGIN names '/no/such/plugin.so'"));
  ::unsetenv("FOREBAY_PJRT_PLUGIN");
  EXPECT_TRUE(FindPlugin("").ok());
}

TEST_F(PluginTest, AFileIsLoadedOnce) {
  const std::string file = FindPlugin("").value();
  const std::string link = folder_.path() / "link.so";
  std::filesystem::create_symlink(file, link);
  EXPECT_EQ(pjrt::LoadPlugin(file).value(), pjrt::LoadPlugin(link).value());
}

TEST_F(PluginTest, AFileThatIsNoPluginIsRefused) {
  const std::string file = folder_.path() / "text.so";
  std::ofstream(file) << "this is not a shared library\n";
  Status status = Client::Create({.plugin_path = file}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("is not a PJRT plugin"));
  // A shared library, but of something else.
  Dl_info libc = {};
  ASSERT_NE(::dladdr(::dlsym(RTLD_DEFAULT, "mkdtemp"), &libc), 0);
  status = Client::Create({.plugin_path = libc.dli_fname}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("no function GetPjrtApi"));
}

}  // namespace
}  // namespace forebay::xla
