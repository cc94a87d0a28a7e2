// Goal: what a server may be told to listen on and to serve, and who may connect to it.
#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include <sys/stat.h>
#include <unistd.h>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/fake_buffer_testing.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "forebay/buffer/service/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

using testing::HasSubstr;

TEST(ServerOptions, TcpBeyondLoopbackNeedsTlsAndToken) {
  FakeBuffer buffer({});
  const std::map<std::string, ServedTable> tables = {{"train", {.buffer = &buffer}}};
  const TempFolder folder;
  MakeCertificate(folder.path(), "server", "localhost");
  ServerOptions options{.listen = {"tcp:0.0.0.0:0"}, .token = "t"};
  EXPECT_THAT(Server::Start(tables, options).status().message(), HasSubstr("TLS"));
  options.certificate_file = folder.path() + "/server.crt";
  options.key_file = folder.path() + "/server.key";
  options.token = "";
  EXPECT_THAT(Server::Start(tables, options).status().message(), HasSubstr("token"));
  options.token = "t";
  EXPECT_TRUE(Server::Start(tables, options).ok());
  options.key_file = folder.path() + "/nothing.key";
  EXPECT_EQ(Server::Start(tables, options).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Server::Start(tables, {.listen = {"tcp:127.0.0.1:0"}}).ok());
}

TEST(ServerOptions, WhatCannotBeServed) {
  FakeBuffer buffer({});
  const std::map<std::string, ServedTable> tables = {{"train", {.buffer = &buffer}}};
  const auto code = [&](const ServerOptions& options) {
    return Server::Start(tables, options).status().code();
  };
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.listen = {"127.0.0.1"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.listen = {"tcp:127.0.0.1:99999"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.listen = {"unix:" + std::string(200, 'x')}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(Server::Start({{"a b", {.buffer = &buffer}}}, {.listen = {"tcp:127.0.0.1:0"}})
                .status()
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      Server::Start({{"a", {.buffer = nullptr}}}, {.listen = {"tcp:127.0.0.1:0"}}).status().code(),
      StatusCode::kInvalidArgument);
}

// A client that waited for the file was refused when it came between bind and listen.
TEST(ServerOptions, WhoSeesTheSocketCanConnect) {
  const TempFolder folder;
  const std::string path = folder.path() + "/s.sock";
  for (int i = 0; i < 200; ++i) {
    std::thread waits([&] {
      ASSERT_TRUE(Eventually([&] { return access(path.c_str(), F_OK) == 0; }));
      EXPECT_TRUE(
          ConnectSocket({.is_unix = true, .path = path}, Now() + std::chrono::seconds(5)).ok());
    });
    Address address{.is_unix = true, .path = path};
    const auto listener = Listen(address);
    waits.join();
    ASSERT_TRUE(listener.ok());
    unlink(path.c_str());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ServerOptions, ATableIsNoPath) {
  for (const char* name : {"", ".", "..", "../up", "a/b", "a b"}) {
    EXPECT_EQ(CheckTableName(name).code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(CheckTableName("eval-2.old_x").ok());
}

TEST(ServerOptions, OneServerOnASocketAndOnlyForItsOwner) {
  FakeBuffer buffer({});
  const std::map<std::string, ServedTable> tables = {{"train", {.buffer = &buffer}}};
  const TempFolder folder;
  const std::string path = folder.path() + "/s.sock";
  auto first = Server::Start(tables, {.listen = {"unix:" + path}});
  ASSERT_TRUE(first.ok());
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(Server::Start(tables, {.listen = {"unix:" + path}}).status().code(),
            StatusCode::kAlreadyExists);
  first->reset();
  EXPECT_NE(stat(path.c_str(), &info), 0);
  EXPECT_TRUE(Server::Start(tables, {.listen = {"unix:" + path}}).ok());
}

}  // namespace
}  // namespace forebay::buffer
