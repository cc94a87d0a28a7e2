#include "forebay/base/http/http_testing.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/socket.h"
#include "forebay/base/task.h"

namespace forebay {

LoopThread::LoopThread() : loop_(MakeLoop()), thread_([this] { loop_->Run(); }) {}
LoopThread::~LoopThread() {
  loop_->Stop();
  thread_.join();
}
void LoopThread::Do(const std::function<void()>& fn) {
  std::promise<void> done;
  loop_->Post([&] {
    fn();
    done.set_value();
  });
  done.get_future().wait();
}
void LoopThread::Await(const std::function<Task<void>()>& make) {
  std::promise<void> done;
  loop_->Post([&] { loop_->Spawn(make(), [&] { done.set_value(); }); });
  done.get_future().wait();
}

TestServer::TestServer(HttpServer::Handler handler, HttpServerOptions options) {
  if (options.listen.empty()) options.listen = {"tcp:127.0.0.1:0"};
  thread_.Do([&] {
    auto server = HttpServer::Start(thread_.loop(), std::move(options), std::move(handler));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
    url_ = server_->addresses().front();
  });
}
TestServer::~TestServer() {
  Stop(std::chrono::seconds(0));
  thread_.Do([this] { server_.reset(); });
}
void TestServer::Stop(Duration within) {
  if (std::exchange(stopped_, true)) return;
  thread_.Await([this, within] { return server_->Stop(Now() + within); });
}
uint16_t TestServer::port() const {
  return static_cast<uint16_t>(std::stoi(url_.substr(url_.rfind(':') + 1)));
}
HttpServerStats TestServer::stats() {
  HttpServerStats out;
  thread_.Do([&] { out = server_->stats(); });
  return out;
}

RawConnection::RawConnection(Fd fd) : fd_(std::move(fd)) {
  const timeval limit{.tv_sec = 120};
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}
RawConnection::RawConnection(uint16_t port)
    : RawConnection(Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}
bool RawConnection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}
std::string RawConnection::ReadUntil(std::string_view text) {
  std::string out;
  std::array<char, 4096> bytes{};
  while (out.find(text) == std::string::npos) {
    const ssize_t n = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (n <= 0) break;
    out.append(bytes.data(), static_cast<size_t>(n));
  }
  return out;
}
void RawConnection::EndWriting() { shutdown(fd_.get(), SHUT_WR); }

RawServer::RawServer(std::function<void(RawConnection&)> script) {
  SocketAddress address{.host = "127.0.0.1"};
  listener_ = std::move(ListenOn(address)).value();
  port_ = address.port;
  thread_ = std::thread([this, script = std::move(script)] {
    while (true) {
      Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd.valid()) {
        if (errno != EAGAIN) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        continue;
      }
      RawConnection connection(std::move(fd));
      script(connection);
    }
  });
}
RawServer::~RawServer() {
  shutdown(listener_.get(), SHUT_RDWR);  // accept then fails
  thread_.join();
}

TestCertificate::TestCertificate() {
  std::string name = std::filesystem::temp_directory_path() / "forebay_tls_XXXXXX";
  folder = mkdtemp(name.data());
  certificate_file = folder + "/certificate.pem";
  key_file = folder + "/key.pem";
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate, subject);
  X509_EXTENSION* names =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  X509_add_ext(certificate, names, -1);
  X509_EXTENSION_free(names);
  X509_sign(certificate, key, EVP_sha256());
  FILE* file = std::fopen(certificate_file.c_str(), "w");
  PEM_write_X509(file, certificate);
  std::fclose(file);
  file = std::fopen(key_file.c_str(), "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
}
TestCertificate::~TestCertificate() { std::filesystem::remove_all(folder); }

void RunTask(Loop& loop, Task<void> task) {
  loop.Spawn(std::move(task), [&loop] { loop.Stop(); });
  loop.Run();
}

}  // namespace forebay
