// Goal: the HTTP server answers what is HTTP, refuses what is not with the right code, and no
// client, however slow, silent, long or hostile, holds it up or makes it take memory without bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/base/http/http_testing.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/socket.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Task<void> Answer(HttpExchange& exchange, HttpResponse response) {
  Task<Status> responding = exchange.Respond(std::move(response));
  const Status done = co_await std::move(responding);
  static_cast<void>(done);
}

// "METHOD target body".
Task<void> Echo(HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  HttpResponse response{.body = request.method + " " + request.url + " " + request.body};
  return Answer(exchange, std::move(response));
}

std::string Get(const std::string& target) {
  return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
}

TEST(HttpServerTest, AnswersRequestsOnOneConnectionInOrder) {
  TestServer server(Echo);
  RawConnection client(server.port());
  // The first two come in one piece, the third in many.
  client.Send(Get("/a") +
              "POST /b?q=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nxyz");
  const std::string both = client.ReadUntil("POST /b?q=1 xyz");
  EXPECT_THAT(both, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_LT(both.find("GET /a "), both.find("POST /b?q=1 xyz"));
  for (const char c : Get("/third")) client.Send(std::string(1, c));
  EXPECT_THAT(client.ReadUntil("GET /third"), HasSubstr("Content-Length: 11"));
  EXPECT_EQ(server.stats().requests, 3);
  EXPECT_EQ(server.stats().connections_total, 1);
}

TEST(HttpServerTest, AcceptsChunkedBodiesAndSaysContinue) {
  TestServer server(Echo);
  RawConnection client(server.port());
  client.Send(
      "POST /c HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nTransfer-Encoding: "
      "chunked\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue"));
  client.Send("3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("abcde"), HasSubstr("POST /c abcde"));
  // One byte after another, and a body that is empty.
  for (const char* body : {"0\r\n\r\n", "1\r\nx\r\n0\r\n\r\n"}) {
    for (const char c :
         std::string("POST /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n") + body) {
      client.Send(std::string(1, c));
      usleep(500);
    }
    EXPECT_THAT(client.ReadUntil("POST /d "), HasSubstr("200 OK"));
  }
}

TEST(HttpServerTest, AHeadRequestGetsNoBodyAndHttp10IsClosed) {
  TestServer server(Echo);
  RawConnection client(server.port());
  client.Send("HEAD /h HTTP/1.1\r\nHost: localhost\r\n\r\n" + Get("/next"));
  const std::string answers = client.ReadUntil("GET /next");
  EXPECT_THAT(answers, HasSubstr("Content-Length: 8\r\n\r\nHTTP/1.1 200"));
  RawConnection old(server.port());
  old.Send("GET /old HTTP/1.0\r\n\r\n");
  EXPECT_THAT(old.ReadAll(), HasSubstr("Connection: close"));
}

Task<void> Count(HttpExchange& exchange) {
  Task<Status> beginning = exchange.Begin(200, {{"Content-Type", "text/plain"}});
  Status status = co_await std::move(beginning);
  for (int i = 0; i < 3 && status.ok(); ++i) {
    Task<Status> writing = exchange.Write("piece" + std::to_string(i));
    status = co_await std::move(writing);
  }
  Task<Status> ending = exchange.End();
  status = co_await std::move(ending);
}

TEST(HttpServerTest, StreamsAnAnswerInChunks) {
  TestServer server(Count);
  RawConnection client(server.port());
  client.Send(Get("/"));
  EXPECT_THAT(client.ReadUntil("0\r\n\r\n"),
              HasSubstr("chunked\r\n\r\n6\r\npiece0\r\n6\r\npiece1\r\n6\r\npiece2\r\n0\r\n\r\n"));
  client.Send(Get("/"));  // the connection lives on
  client.ReadUntil("0\r\n\r\n");
  EXPECT_EQ(server.stats().connections_total, 1);
  RawConnection old(server.port());
  old.Send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_THAT(old.ReadAll(), HasSubstr("\r\n\r\npiece0piece1piece2"));
}

TEST(HttpServerTest, AClientThatDoesNotReadHoldsNothingUpAndIsDropped) {
  std::atomic<int64_t> written = 0;
  std::atomic<int> code = -1;
  const auto flood = [&](HttpExchange& exchange) -> Task<void> {
    Task<Status> beginning = exchange.Begin(200, {});
    Status status = co_await std::move(beginning);
    const std::string piece(256 << 10, 'x');
    while (status.ok() && written < (int64_t{1} << 30)) {
      Task<Status> writing = exchange.Write(piece);
      status = co_await std::move(writing);
      if (status.ok()) written += static_cast<int64_t>(piece.size());
    }
    code = static_cast<int>(status.code());
  };
  TestServer server(
      [&](HttpExchange& e) { return e.request().url == "/flood" ? flood(e) : Echo(e); },
      {.write_deadline = milliseconds(300)});
  RawConnection silent(server.port());
  silent.Send(Get("/flood"));
  while (code < 0) {
    RawConnection other(server.port());
    other.Send(Get("/a"));
    EXPECT_THAT(other.ReadUntil("GET /a"), HasSubstr("GET /a"));
  }
  EXPECT_EQ(code, static_cast<int>(StatusCode::kDeadlineExceeded));
  EXPECT_LT(written, 64 << 20);  // what the kernel's buffers hold
}

TEST(HttpServerTest, ASlowLorisGets408) {
  TestServer server(Echo,
                    {.header_deadline = milliseconds(300), .body_deadline = milliseconds(300)});
  RawConnection header(server.port());
  RawConnection body(server.port());
  header.Send("GET / HTTP/1.1\r\nX-A");
  body.Send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_THAT(header.ReadAll(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(body.ReadAll(), StartsWith("HTTP/1.1 408 "));
  // A byte now and then does not help.
  RawConnection drip(server.port());
  bool alive = drip.Send("GET / HTTP/1.1\r\n");
  for (int i = 0; i < 1000 && alive; ++i) {
    usleep(10'000);
    alive = drip.Send("A");
  }
  EXPECT_FALSE(alive);
  EXPECT_EQ(server.stats().requests, 0);
  EXPECT_EQ(server.stats().refused, 3);
}

TEST(HttpServerTest, SilentConnectionsAreClosed) {
  TestServer server(Echo, {.idle_deadline = milliseconds(100)});
  RawConnection silent(server.port());
  EXPECT_EQ(silent.ReadAll(), "");
  // Its request is there before the server looks.
  std::optional<RawConnection> idle;
  server.thread().Do([&] {
    idle.emplace(server.port());
    idle->Send(Get("/a"));
  });
  EXPECT_THAT(idle->ReadAll(), HasSubstr("GET /a"));
  while (server.stats().connections > 0) usleep(1000);
  EXPECT_EQ(server.stats().timed_out, 2);
}

TEST(HttpServerTest, RefusesWhatIsTooLong) {
  TestServer server(Echo, {.header_bytes_max = 4096, .body_bytes_max = 1000});
  const std::string begin = "POST / HTTP/1.1\r\nHost: localhost\r\n";
  RawConnection one(server.port());
  one.Send(begin + "X: " + std::string(5000, 'a') + "\r\n\r\n");
  EXPECT_THAT(one.ReadAll(), StartsWith("HTTP/1.1 431 "));
  // Many short lines, in pieces that are each short.
  RawConnection many(server.port());
  many.Send(begin);
  bool alive = true;
  for (int i = 0; i < 100'000 && alive; ++i) alive = many.Send("A: b\r\n");
  EXPECT_THAT(many.ReadAll(), StartsWith("HTTP/1.1 431 "));
  // Refused from the announcement: nobody waits for the body.
  RawConnection announced(server.port());
  announced.Send(begin + "Content-Length: 99999999999\r\n\r\n");
  EXPECT_THAT(announced.ReadAll(), StartsWith("HTTP/1.1 413 "));
  RawConnection chunked(server.port());
  chunked.Send(begin + "Transfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.Send("64\r\n" + std::string(100, 'c') + "\r\n");
  EXPECT_THAT(chunked.ReadAll(), StartsWith("HTTP/1.1 413 "));
  // A chunk header that never ends.
  RawConnection header(server.port());
  header.Send(begin + "Transfer-Encoding: chunked\r\n\r\n1;");
  for (int i = 0; i < 100 && header.Send(std::string(4096, 'e')); ++i) {
  }
  EXPECT_THAT(header.ReadAll(), StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(server.stats().requests, 0);
}

TEST(HttpServerTest, TheAnswer413IsSeenByAClientThatSendsFirstAndReadsThen) {
  TestServer server(Echo, {.body_bytes_max = 1000});
  RawConnection client(server.port());
  const size_t size = 20 << 20;  // more than the kernel's buffers hold
  client.Send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(size) +
              "\r\n\r\n");
  EXPECT_TRUE(client.Send(std::string(size, 'x')));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 413 "));
}

TEST(HttpServerTest, GarbageGets400) {
  TestServer server(Echo);
  const std::vector<std::string> garbage = {
      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  // TLS
      "hello\r\n\r\n",
      "GET / HTTP/2.7\r\n\r\n",
      "GET  / HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nno colon\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
      "POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
      "GET http://other/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
      std::string("GET /\0 HTTP/1.1\r\n\r\n", 19),
  };
  for (const std::string& bytes : garbage) {
    RawConnection client(server.port());
    client.Send(bytes);
    EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 400 ")) << bytes;
  }
  EXPECT_EQ(server.stats().requests, 0);
  // Half a request and gone.
  RawConnection(server.port()).Send("GET / HT");
  while (server.stats().connections > 0) usleep(1000);
}

TEST(HttpServerTest, AsksWhoItIsBeforeTheBody) {
  TestServer server(Echo, {.authorize = [](const HttpRequest& request) {
                      return SecretsEqual(request.bearer(), "secret");
                    }});
  RawConnection client(server.port());
  client.Send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), HasSubstr("401 Unauthorized"));
  RawConnection good(server.port());
  good.Send("GET /a HTTP/1.1\r\nHost: localhost\r\nAuthorization: bearer secret\r\n\r\n");
  EXPECT_THAT(good.ReadUntil("/a"), HasSubstr("200 OK"));
  for (const char* wrong : {"Bearer secre", "Bearer secrets", "Basic secret", ""}) {
    RawConnection bad(server.port());
    bad.Send(std::string("GET /a HTTP/1.1\r\nAuthorization: ") + wrong + "\r\n\r\n");
    EXPECT_THAT(bad.ReadAll(), HasSubstr("401 Unauthorized")) << wrong;
  }
}

TEST(HttpServerTest, PagesOfOtherOriginsAreRefused) {
  TestServer server(Echo);
  for (const auto& [origin, code] : {std::pair{"https://evil.example", "403"},
                                     {"null", "403"},
                                     {"http://localhost:3000", "200"},
                                     {"http://127.0.0.1:3000", "200"},
                                     {"http://127.evil.example", "403"}}) {
    RawConnection client(server.port());
    client.Send(std::string("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nOrigin: ") +
                origin + "\r\n\r\n");
    EXPECT_THAT(client.ReadAll(), StartsWith(std::string("HTTP/1.1 ") + code)) << origin;
  }
}

// A name of the page's own that its name server lets point here: the browser sees one origin.
TEST(HttpServerTest, RequestsForOtherNamesAreRefused) {
  TestServer server(Echo, {.listen = {"tcp:localhost:0"}, .allowed_hosts = {"Box.internal"}});
  const auto code = [&](const std::string& method, const std::string& headers) {
    RawConnection client(server.port());
    client.Send(method + " /v1/models HTTP/1.1\r\nConnection: close\r\n" + headers + "\r\n");
    const std::string answer = client.ReadAll();
    return answer.substr(std::string("HTTP/1.1 ").size(), 3);
  };
  for (const char* method : {"GET", "HEAD", "POST", "OPTIONS"}) {
    for (const char* host :
         {"evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
          "8.8.8.8", "0.0.0.0:8000", "[2001:db8::1]:80", "user@localhost", "localhost/x",
          "localhost:8000:9", "localhost?", "", "a b"}) {
      EXPECT_EQ(code(method, std::string("Host: ") + host + "\r\n"), "403") << method << host;
    }
    for (const char* host : {"localhost", "LocalHost:1", "127.0.0.1:8000", "127.1.2.3",
                             "[::1]:8000", "models.localhost:8000", "box.internal:80"}) {
      EXPECT_EQ(code(method, std::string("Host: ") + host + "\r\n"), "200") << method << host;
    }
    EXPECT_EQ(code(method, ""), "200");  // no browser
  }
  // The page of an allowed name may ask, and neither header makes up for the other.
  EXPECT_EQ(code("POST", "Host: box.internal\r\nOrigin: http://box.internal:9\r\n"), "200");
  EXPECT_EQ(code("POST", "Host: evil.example\r\nOrigin: http://evil.example\r\n"), "403");
  EXPECT_EQ(code("POST", "Host: evil.example\r\nOrigin: http://localhost\r\n"), "403");
  EXPECT_EQ(code("POST", "Host: localhost\r\nHost: evil.example\r\n"), "403");
}

// No page has the key, and none reaches a Unix socket.
TEST(HttpServerTest, AKeyOrAUnixSocketNeedsNoName) {
  {
    TestServer server(Echo, {.authorize = [](const HttpRequest& request) {
                        return SecretsEqual(request.bearer(), "secret");
                      }});
    RawConnection client(server.port());
    client.Send("GET /a HTTP/1.1\r\nHost: box.example\r\nAuthorization: Bearer secret\r\n\r\n");
    EXPECT_THAT(client.ReadUntil("/a"), HasSubstr("200 OK"));
  }
  std::string folder = std::filesystem::temp_directory_path() / "forebay_http_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  TestServer server(Echo, {.listen = {"unix:" + folder + "/s"}});
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::vector<SocketName> names =
      SocketNames({.is_unix = true, .path = folder + "/s"}).value();
  ASSERT_EQ(connect(fd.get(), names[0].get(), names[0].size), 0);
  RawConnection client(std::move(fd));
  client.Send("GET /a HTTP/1.1\r\nHost: whatever\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("/a"), HasSubstr("200 OK"));
  std::filesystem::remove_all(folder);
}

TEST(HttpServerTest, NothingListensBeyondLoopbackWithoutATokenAndTls) {
  std::unique_ptr<Loop> loop = MakeLoop();
  const TestCertificate certificate;
  const auto authorize = [](const HttpRequest&) { return true; };
  const auto start = [&](HttpServerOptions options) {
    return HttpServer::Start(*loop, std::move(options), Echo).status();
  };
  const Status open = start({.listen = {"tcp:0.0.0.0:0"}});
  EXPECT_EQ(open.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(open.message(), HasSubstr("can be reached from other machines"));
  EXPECT_EQ(start({.listen = {"tcp:0.0.0.0:0"}, .authorize = authorize}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(start({.listen = {"tcp:0.0.0.0:0"},
                   .certificate_file = certificate.certificate_file,
                   .key_file = certificate.key_file})
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(start({.listen = {"tcp:0.0.0.0:0"},
                     .certificate_file = certificate.certificate_file,
                     .key_file = certificate.key_file,
                     .authorize = authorize})
                  .ok());
  EXPECT_EQ(start({.listen = {"tcp:127.0.0.1:0"},
                   .certificate_file = certificate.key_file,
                   .key_file = certificate.key_file})
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(start({.listen = {"127.0.0.1:80"}}).code(), StatusCode::kInvalidArgument);
}

TEST(HttpServerTest, AUnixSocketIsForItsOwnerAndIsTakenOverOnlyWhenStale) {
  std::string folder = std::filesystem::temp_directory_path() / "forebay_http_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/s";
  std::unique_ptr<Loop> loop = MakeLoop();
  {
    TestServer server(Echo, {.listen = {"unix:" + path}});
    EXPECT_EQ(server.url(), "unix:" + path);
    struct stat info{};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U);
    EXPECT_EQ(HttpServer::Start(*loop, {.listen = {"unix:" + path}}, Echo).status().code(),
              StatusCode::kAlreadyExists);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  {
    SocketAddress address{.is_unix = true, .path = path};
    EXPECT_TRUE(ListenOn(address).ok());  // and gone, but its file stays
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  {
    TestServer server(Echo, {.listen = {"unix:" + path}});
  }
  std::ofstream(path) << "a file";
  EXPECT_EQ(HttpServer::Start(*loop, {.listen = {"unix:" + path}}, Echo).status().code(),
            StatusCode::kAlreadyExists);
  std::filesystem::remove_all(folder);
}

// A handler that waits until the client has gone.
struct Waiter {
  Loop* loop = nullptr;
  std::atomic<int> waiting = 0, gone = 0;
  Task<void> Handle(HttpExchange& exchange) {
    const OneShot<bool> left(*loop);
    exchange.OnDisconnect([left] { left.Set(true); });
    ++waiting;
    auto wait = left.Wait();
    co_await wait;
    ++gone;
    Task<Status> responding = exchange.Respond({.body = "late"});
    const Status status = co_await std::move(responding);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  }
};

TEST(HttpServerTest, AHandlerLearnsThatItsClientHasGone) {
  Waiter waiter;
  TestServer server([&](HttpExchange& e) { return waiter.Handle(e); });
  waiter.loop = &server.thread().loop();
  {
    RawConnection client(server.port());
    client.Send(Get("/"));
    while (waiter.waiting == 0) usleep(1000);
  }
  while (waiter.gone == 0) usleep(1000);
  while (server.stats().connections > 0) usleep(1000);
}

TEST(HttpServerTest, StopClosesTheConnectionsOfHandlersThatDoNotEnd) {
  Waiter waiter;
  TestServer server([&](HttpExchange& e) { return waiter.Handle(e); });
  waiter.loop = &server.thread().loop();
  RawConnection client(server.port());
  client.Send(Get("/"));
  RawConnection idle(server.port());
  while (waiter.waiting == 0) usleep(1000);
  server.Stop(milliseconds(50));
  EXPECT_EQ(waiter.gone, 1);
  EXPECT_EQ(client.ReadAll(), "");
  EXPECT_EQ(idle.ReadAll(), "");
}

TEST(HttpServerTest, AHandlerThatDoesNotAnswerIsA500) {
  TestServer server([](HttpExchange&) -> Task<void> { co_return; });
  RawConnection client(server.port());
  client.Send(Get("/"));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 500 "));
}

TEST(HttpServerTest, MoreConnectionsThanThereIsRoomForWait) {
  TestServer server(Echo, {.connections_max = 2});
  std::vector<std::unique_ptr<RawConnection>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_unique<RawConnection>(server.port()));
    clients.back()->Send(Get("/" + std::to_string(i)));
  }
  for (int i = 0; i < 5; ++i) {
    const std::string target = "GET /" + std::to_string(i);
    EXPECT_THAT(clients[static_cast<size_t>(i)]->ReadUntil(target), HasSubstr(target));
    clients[static_cast<size_t>(i)].reset();
  }
}

}  // namespace
}  // namespace forebay
