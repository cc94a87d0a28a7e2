// Goal: the Python client and this server understand each other, over a Unix socket, over TLS, and
// over the loss of the server. What the client is asked to do is in python/tests/test_buffer.py.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/fake_buffer_testing.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

constexpr const char* kPython = FOREBAY_SOURCE_DIR "/python";

class PythonClientTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c 'import ssl' >/dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  }
  void Start(ServerOptions options) {
    options.folder = folder_.path();
    auto server =
        Server::Start({{"train", {.buffer = &train_, .group_size = 2}},
                       {"eval", {.buffer = &eval_, .implied_dispatch = false, .group_size = 1}}},
                      options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = *std::move(server);
  }
  std::string Log() const { return folder_.path() + "/python.log"; }
  // The shell's, of a Python that finds the package and the server.
  std::string Command(const std::string& arguments, const std::string& environment = "") const {
    return "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=" + std::string(kPython) + " " + environment +
           " FOREBAY_BUFFER_ADDRESS=" + server_->addresses()[0] + " timeout 120 python3 " +
           arguments + " >" + Log() + " 2>&1";
  }
  // What it printed is shown when it fails.
  void Run(const std::string& command) const {
    const int code = std::system(command.c_str());
    std::ifstream file(Log());
    EXPECT_EQ(code, 0) << std::string(std::istreambuf_iterator<char>(file), {});
  }
  void Python(const std::string& arguments, const std::string& environment = "") const {
    Run(Command(arguments, environment));
  }

  TempFolder folder_;
  FakeBuffer train_{{.group_size = 2}};
  FakeBuffer eval_{{}};
  std::unique_ptr<Server> server_;
};

TEST_F(PythonClientTest, OverAUnixSocket) {
  Start({.listen = {"unix:" + folder_.path() + "/s.sock"}, .token = "t"});
  Python(std::string(kPython) + "/tests/test_buffer.py -v");
}

TEST_F(PythonClientTest, OverTls) {
  MakeCertificate(folder_.path(), "server", "127.0.0.1");
  Start({.listen = {"tcp:127.0.0.1:0"},
         .token = "t",
         .certificate_file = folder_.path() + "/server.crt",
         .key_file = folder_.path() + "/server.key"});
  Python(std::string(kPython) + "/tests/test_buffer.py -v",
         "FOREBAY_BUFFER_TOKEN=t FOREBAY_BUFFER_CA=" + folder_.path() + "/server.crt");
}

TEST_F(PythonClientTest, WhatPythonWritesIsWhatCxxReads) {
  Start({.listen = {"unix:" + folder_.path() + "/s.sock"}});
  ASSERT_TRUE(WriteFileAtomic(folder_.path() + "/one.py", R"(
import os
from forebay.buffer import *
with BufferClient(os.environ["FOREBAY_BUFFER_ADDRESS"], table="eval") as client:
    client.append(Trajectory(tokens=[1, 2, 3], loss_mask=[0, 1, 1], rollout_logprobs=[0, -0.5, -1.0],
                             versions=[(4, 2)], rewards={"a": 1.5, "\u00e4": 2}, trajectory_id=7, group_id=8,
                             environment="e", turns=[Turn("action", 1, 3, (1, 2, 3, 4, 5), "tool")]))
)")
                  .ok());
  Python(folder_.path() + "/one.py");
  const auto trajectory = Decode(eval_.encoded(7));
  ASSERT_TRUE(trajectory.ok()) << trajectory.status().message();
  EXPECT_EQ(trajectory->id.group_id, 8);
  EXPECT_EQ(trajectory->reward(), 3.5);
  EXPECT_EQ(trajectory->max_version(), 4);
  EXPECT_EQ(trajectory->turns.at(0).tool, "tool");
}

TEST_F(PythonClientTest, ALostServerStoresNothingTwice) {
  Start({.listen = {"unix:" + folder_.path() + "/s.sock"}});
  ASSERT_TRUE(WriteFileAtomic(folder_.path() + "/many.py", R"(
import os, time
from forebay.buffer import *
with BufferClient(os.environ["FOREBAY_BUFFER_ADDRESS"], producer="p") as client:
    for i in range(300):
        group = client.new_ids()
        client.append_many([Trajectory(tokens=[1], loss_mask=[0], rollout_logprobs=[0], versions=[], group_id=group,
                                       member=member) for member in range(2)])
        time.sleep(0.002)
)")
                  .ok());
  const std::string address = server_->addresses()[0];
  // Made here: the server is another one by the time that the thread runs.
  const std::string command = Command(folder_.path() + "/many.py");
  std::thread python([&] { Run(command); });
  EXPECT_TRUE(Eventually([&] { return train_.stored() > 50; }));
  for (int i = 0; i < 3; ++i) {
    server_->Stop(Now());
    server_.reset();
    Start({.listen = {address}});
    const int64_t before = train_.stored();
    EXPECT_TRUE(Eventually([&] { return train_.stored() > before + 20; }));
  }
  python.join();
  EXPECT_EQ(train_.stored(), 600);
}

}  // namespace
}  // namespace forebay::buffer
