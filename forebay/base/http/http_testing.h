// What the tests of HTTP share: a server on a thread of its own, a client that sends what it likes,
// and a server that answers what it likes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "forebay/base/file.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/task.h"

namespace forebay {

// A loop on a thread of its own.
class LoopThread {
 public:
  LoopThread();
  ~LoopThread();
  Loop& loop() { return *loop_; }
  // Runs on the loop and waits.
  void Do(const std::function<void()>& fn);
  void Await(const std::function<Task<void>()>& make);

 private:
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

// A server on tcp:127.0.0.1:0 (or what the options say), stopped at its end.
class TestServer {
 public:
  TestServer(HttpServer::Handler handler, HttpServerOptions options = {});
  ~TestServer();
  const std::string& url() const { return url_; }  // without a target
  uint16_t port() const;
  HttpServerStats stats();
  LoopThread& thread() { return thread_; }
  // Once.
  void Stop(Duration within);

 private:
  LoopThread thread_;
  std::unique_ptr<HttpServer> server_;
  std::string url_;
  bool stopped_ = false;
};

// A blocking connection; everything ends after 120 s at the latest.
class RawConnection {
 public:
  explicit RawConnection(uint16_t port);
  explicit RawConnection(Fd fd);
  // False: the peer has gone.
  bool Send(std::string_view bytes);
  // What comes until the text is in it, or the end of the stream.
  std::string ReadUntil(std::string_view text);
  std::string ReadAll() { return ReadUntil("\x01never\x01"); }
  void EndWriting();
  void Close() { fd_.Close(); }

 private:
  Fd fd_;
};

// Listens, and gives each connection that comes to `script` on a thread of its own, one after
// another.
class RawServer {
 public:
  explicit RawServer(std::function<void(RawConnection&)> script);
  ~RawServer();
  uint16_t port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  Fd listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

// A fresh self-signed certificate for 127.0.0.1 and "localhost" as PEM files.
struct TestCertificate {
  TestCertificate();
  ~TestCertificate();
  std::string certificate_file, key_file;
  std::string folder;
};

// Runs `task` on a loop of its own, on this thread, to its end.
void RunTask(Loop& loop, Task<void> task);

}  // namespace forebay
