// Exchange: one request of a server's connection and what is answered to it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/connection.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::http {

class Exchange final : public HttpExchange {
 public:
  struct Options {
    bool http11 = true;
    bool keep_alive = true;  // what the client asks for
    Duration write_deadline{};
  };
  Exchange(Loop& loop, std::shared_ptr<Connection> connection, HttpRequest request,
           const Options& options)
      : loop_(loop),
        connection_(std::move(connection)),
        request_(std::move(request)),
        options_(options) {}

  const HttpRequest& request() const override { return request_; }
  Task<Status> Respond(HttpResponse response) override;
  Task<Status> Begin(int status, HttpHeaders headers) override;
  Task<Status> Write(std::string piece) override;
  Task<Status> End() override;
  bool begun() const override { return begun_; }
  bool disconnected() const override { return connection_->ended(); }
  void OnDisconnect(std::function<void()> fn) override { on_disconnect_ = std::move(fn); }

  // The connection has ended.
  void Disconnect() {
    if (auto fn = std::exchange(on_disconnect_, nullptr)) fn();
  }
  // The answer is complete, and another request may follow.
  bool reusable() const { return ended_ && keep_alive_; }
  bool ended() const { return ended_; }
  void CloseAfterwards() { options_.keep_alive = false; }

 private:
  std::string Head(int status, const HttpHeaders& headers) const;
  Task<Status> Send(std::string bytes);

  Loop& loop_;
  const std::shared_ptr<Connection> connection_;
  const HttpRequest request_;
  Options options_;
  std::function<void()> on_disconnect_;
  bool begun_ = false, ended_ = false, keep_alive_ = false;
};

}  // namespace forebay::http
