// Goal: clients that open a stream and do not read it hold no slot that another request waits for,
// make the server hold no more than the kernel and a few pieces, and hold nobody up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/http.h"
#include "forebay/base/socket.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/openai_server_testing.h"
#include "forebay/rollout/serving/serving_testing.h"

namespace forebay::rollout::serving {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr int64_t kClients = 20;

class StalledReaderTest : public OpenAiServerTest {
 protected:
  void SetUp() override {
    bench_.engine->context = int64_t{1} << 20;
    bench_.engine->say = [](const GenerateRequest& request) {
      return request.new_tokens_max == 7 ? "short" : std::string(8000, 'x');
    };
  }
  void ServeWith(Duration deadline) { Serve({.stalled_reader_deadline = deadline}); }

  // A connection that has asked for a stream and reads nothing of it by itself. The alternatives
  // make a kilobyte and more of each token, also where a busy server puts many into one event: a
  // few thousand are more than a kernel keeps for a socket (4 MiB to send, and what is set here).
  Fd OpenStream() {
    const HttpUrl url = ParseUrl(bench_.base).value();
    const SocketName name = SocketNames({.host = url.host, .port = url.port}).value().front();
    Fd fd(socket(name.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int receive_bytes = 16 * 1024;
    EXPECT_EQ(setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes)),
              0);
    EXPECT_EQ(connect(fd.get(), name.get(), name.size), 0);
    const std::string body =
        Ask({{"stream", true}, {"logprobs", true}, {"top_logprobs", 20}}).dump();
    const std::string request =
        "POST " + kChat +
        " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    EXPECT_EQ(send(fd.get(), request.data(), request.size(), 0),
              static_cast<ssize_t>(request.size()));
    return fd;
  }
  // The body that comes until its end, as the loop sends it.
  std::string ReadAll(const Fd& fd) {
    std::string out;
    bool ended = false;
    bench_.Until([&] {
      std::string bytes(size_t{1} << 16, '\0');
      const ssize_t n = recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (n > 0) out.append(bytes, 0, static_cast<size_t>(n));
      ended = n == 0 || out.ends_with("0\r\n\r\n");
      return ended;
    });
    return Joined(out);
  }
  // Of a response of whole chunks, wherever they were cut.
  static std::string Joined(const std::string& response) {
    std::string out;
    size_t at = response.find("\r\n\r\n") + 4;
    while (at < response.size()) {
      const size_t bytes = std::stoul(response.substr(at, 8), nullptr, 16);
      at = response.find("\r\n", at) + 2;
      out.append(response, at, bytes);
      at += bytes + 2;
    }
    return out;
  }
};

TEST_F(StalledReaderTest, LosesItsSlotsWhenOthersWait) {
  ServeWith(milliseconds(50));
  bench_.engine->hangs_after = 6000;  // as long as nobody cancels them
  std::vector<Fd> clients;
  for (int64_t i = 0; i < kClients; ++i) clients.push_back(OpenStream());
  bench_.Until([&] { return bench_.engine->requests.size() == kClients; });
  // Nobody waits: they may read whenever they like.
  const TimePoint later = Now() + milliseconds(500);
  bench_.Until([&] { return Now() > later; });
  EXPECT_EQ(bench_.engine->cancelled, 0);
  // Whoever reads is served meanwhile, also by a stream.
  EXPECT_EQ(bench_.Post(kChat, Ask({{"max_tokens", 7}})).status, 200);
  EXPECT_EQ(bench_.Stream(kChat, Ask({{"max_tokens", 7}, {"stream", true}})).back(), "[DONE]");

  bench_.engine->waiting = 1;
  bench_.Until([&] { return bench_.engine->cancelled == kClients; });
  // A client that reads on is told.
  const std::string all = ReadAll(clients.front());
  EXPECT_THAT(all, HasSubstr("did not read it for 0.05 s while other requests waited"));
  EXPECT_THAT(all, HasSubstr("data: [DONE]"));
  bench_.Until([&] { return server_->stats().cancelled >= 1; });
}

TEST_F(StalledReaderTest, ThatReadsEverythingMayWaitForTheNextTokenAsLongAsItLikes) {
  ServeWith(milliseconds(20));
  bench_.engine->hangs_after = 5;
  bench_.engine->waiting = 1;
  const Fd client = OpenStream();
  bench_.Until([&] { return bench_.engine->requests.size() == 1; });
  const TimePoint later = Now() + milliseconds(300);
  bench_.Until([&] { return Now() > later; });
  EXPECT_EQ(bench_.engine->cancelled, 0);
}

TEST_F(StalledReaderTest, CannotLetTheServerKeepEventsWithoutEnd) {
  ServeWith(milliseconds(20));
  bench_.engine->say = [](const GenerateRequest&) { return std::string(40'000, 'x'); };
  bench_.engine->hangs_after = 30'000;
  const Fd client = OpenStream();
  bench_.Until([&] { return bench_.engine->cancelled == 1; });
  EXPECT_THAT(ReadAll(client), HasSubstr("more than 16384 tokens wait"));
}

}  // namespace
}  // namespace forebay::rollout::serving
