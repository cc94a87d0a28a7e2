// Compiled programs on disk: found again, and never trusted when damaged.
#include "forebay/xla/pjrt/program_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/pjrt/client_testing.h"

namespace forebay::xla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DiskCacheTest : public ::testing::Test {
 protected:
  // A new client on the cache folder compiles `program` and checks its value.
  CompileCounters Compile(const Program& program) {
    const std::unique_ptr<Client> client = MakeClient({.cache_dir = folder_.path() / "programs"});
    const auto executable = client->Compile(program);
    EXPECT_TRUE(executable.ok()) << executable.status().ToString();
    if (!executable.ok()) return client->counters();
    Buffer x = Vector(*client, {1, 2, 3, 4});
    Buffer y = Vector(*client, {10, 20, 30, 40});
    EXPECT_THAT(Floats(Call(**executable, {&x, &y}).value()[0]), ElementsAre(11, 22, 33, 44));
    EXPECT_EQ((*executable)->memory().value().argument_bytes, 32);
    return client->counters();
  }
  std::vector<std::filesystem::path> Files() const {
    std::vector<std::filesystem::path> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "programs")) {
      out.push_back(entry.path());
    }
    return out;
  }
  TemporaryFolder folder_;
};

TEST_F(DiskCacheTest, ASecondRunDoesNotCompile) {
  EXPECT_EQ(Compile(AddProgram(true)).compiled, 1);
  ASSERT_EQ(Files().size(), 1u);  // and no temporary file
  const CompileCounters second = Compile(AddProgram(true));
  EXPECT_EQ(second.compiled, 0);
  EXPECT_EQ(second.disk_hits, 1);
  // Another program misses.
  EXPECT_EQ(Compile(AddProgram(false)).compiled, 1);
  EXPECT_EQ(Files().size(), 2u);
}

TEST_F(DiskCacheTest, ADamagedFileIsReplaced) {
  EXPECT_EQ(Compile(AddProgram(true)).compiled, 1);
  ASSERT_EQ(Files().size(), 1u);
  const std::filesystem::path file = Files()[0];
  std::string whole;
  {
    std::ifstream in(file, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::string flipped = whole;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  std::string huge = whole;  // a payload size of 2^63 - 1
  for (size_t i = 24; i < 31; ++i) huge[i] = static_cast<char>(0xff);
  huge[31] = 0x7f;
  for (const std::string& damaged :
       {std::string(), whole.substr(0, 20), whole.substr(0, whole.size() - 1), whole + "x", flipped,
        huge, std::string(5000, 'x')}) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << damaged;
    const CompileCounters counters = Compile(AddProgram(true));
    EXPECT_EQ(counters.compiled, 1) << damaged.size();
    EXPECT_EQ(counters.disk_hits, 0) << damaged.size();
    EXPECT_EQ(Compile(AddProgram(true)).disk_hits, 1) << "the file was not replaced";
  }
}

// A valid file whose payload the plugin refuses: compiled again, not fatal.
TEST_F(DiskCacheTest, AForeignPayloadIsReplaced) {
  EXPECT_EQ(Compile(AddProgram(true)).compiled, 1);
  const std::string name = Files()[0].stem().string();
  const pjrt::Hash128 key{std::stoull(name.substr(0, 16), nullptr, 16),
                          std::stoull(name.substr(16), nullptr, 16)};
  const pjrt::DiskCache cache = pjrt::DiskCache::Open(folder_.path() / "programs").value();
  cache.Write(key, "not an executable");
  EXPECT_EQ(Compile(AddProgram(true)).compiled, 1);
  EXPECT_EQ(Compile(AddProgram(true)).disk_hits, 1);
}

// One program's file under another's name, as a careless copy would leave it.
TEST_F(DiskCacheTest, AnotherProgramsFileIsReplaced) {
  EXPECT_EQ(Compile(AddProgram(true)).compiled, 1);
  const std::filesystem::path first = Files()[0];
  EXPECT_EQ(Compile(AddProgram(false)).compiled, 1);
  const std::vector<std::filesystem::path> files = Files();
  ASSERT_EQ(files.size(), 2u);
  const std::filesystem::path second = files[0] == first ? files[1] : files[0];
  std::filesystem::copy_file(first, second, std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(Compile(AddProgram(false)).compiled, 1);
  EXPECT_EQ(Compile(AddProgram(false)).disk_hits, 1);
}

TEST_F(DiskCacheTest, AFolderThatCannotBeMadeIsNamed) {
  const std::filesystem::path file = folder_.path() / "file";
  std::ofstream(file) << "x";
  const Status status = Client::Create({.cache_dir = file}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(file.string()));
}

}  // namespace
}  // namespace forebay::xla
