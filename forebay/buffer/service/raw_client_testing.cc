#include "forebay/buffer/service/raw_client_testing.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/shared_area.h"
#include "forebay/buffer/service/socket.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {

std::string FrameBytes(FrameHeader header, std::string_view payload) {
  header.length = static_cast<uint32_t>(payload.size());
  const FrameHeaderBytes bytes = EncodeFrameHeader(header);
  return std::string(bytes.data(), bytes.size()).append(payload);
}

std::string HelloBytes(const Hello& hello) {
  return FrameBytes({.type = FrameType::kHello}, EncodeHello(hello));
}

RawClient::RawClient(const std::string& address) {
  Result<Fd> fd = ConnectSocket(*ParseAddress(address), Now() + std::chrono::seconds(60));
  FB_CHECK(fd.ok(), fd.status().message());
  fd_ = std::move(*fd);
}

bool RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EAGAIN || !WaitWritable(fd_.get(), Now() + std::chrono::seconds(60))) {
      return false;
    }
  }
  return true;
}

std::optional<RawFrame> RawClient::Next(Duration wait) {
  const TimePoint deadline = Now() + wait;
  while (true) {
    if (in_.size() >= kFrameHeaderBytes) {
      const auto header =
          ParseFrameHeader(std::string_view(in_).substr(0, kFrameHeaderBytes), 1 << 30);
      FB_CHECK(header.ok(), header.status().message());
      if (in_.size() >= kFrameHeaderBytes + header->length) {
        RawFrame frame{*header, in_.substr(kFrameHeaderBytes, header->length)};
        in_.erase(0, kFrameHeaderBytes + header->length);
        return frame;
      }
    }
    if (!WaitReadable(fd_.get(), deadline)) return std::nullopt;
    std::array<char, 65536> bytes;
    const ssize_t n = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (n <= 0) return std::nullopt;
    in_.append(bytes.data(), static_cast<size_t>(n));
  }
}

bool RawClient::Closed(Duration wait) {
  const TimePoint deadline = Now() + wait;
  while (WaitReadable(fd_.get(), deadline)) {
    std::array<char, 65536> bytes;
    if (recv(fd_.get(), bytes.data(), bytes.size(), 0) <= 0) return true;
  }
  return false;
}

bool RawClient::Greet(const std::string& producer, const std::string& token, uint16_t version) {
  if (!Send(HelloBytes(
          {.version_min = 1, .version_max = version, .token = token, .producer = producer}))) {
    return false;
  }
  const std::optional<RawFrame> frame = Next();
  if (!frame.has_value() || frame->header.type != FrameType::kWelcome) return false;
  Result<Welcome> welcome = ParseWelcome(frame->payload);
  if (!welcome.ok()) return false;
  welcome_ = *std::move(welcome);
  return true;
}

std::unique_ptr<SharedArea> RawClient::Share(const AreaSizes& sizes) {
  if (!Send(FrameBytes({.type = FrameType::kShare}, EncodeAreaSizes(sizes)))) return nullptr;
  std::array<char, kFrameHeaderBytes + 2 * sizeof(uint64_t)> bytes;
  Fd fd;
  if (!WaitReadable(fd_.get(), Now() + std::chrono::seconds(60)) ||
      ReceiveWithFd(fd_.get(), bytes.data(), bytes.size(), &fd) != bytes.size()) {
    return nullptr;
  }
  const Result<AreaSizes> granted =
      ParseAreaSizes(std::string_view(bytes.data(), bytes.size()).substr(kFrameHeaderBytes));
  if (!granted.ok() || !fd.valid()) return nullptr;
  Result<std::unique_ptr<SharedArea>> area = SharedArea::Map(std::move(fd), *granted);
  return area.ok() ? *std::move(area) : nullptr;
}

bool Eventually(const std::function<bool()>& condition) {
  const TimePoint deadline = Now() + std::chrono::seconds(120);
  while (!condition()) {
    if (Now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

TempFolder::TempFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "forebay_service_XXXXXX").string();
  FB_CHECK(mkdtemp(path.data()) != nullptr);
  path_ = path;
}

TempFolder::~TempFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

void MakeCertificate(const std::string& folder, const std::string& name, const std::string& host) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(host.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate, subject);
  const bool address =
      std::ranges::all_of(host, [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
  X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name,
                                              ((address ? "IP:" : "DNS:") + host).c_str());
  X509_add_ext(certificate, names, -1);
  FB_CHECK(X509_sign(certificate, key, EVP_sha256()) > 0);
  FILE* file = std::fopen((folder + "/" + name + ".crt").c_str(), "w");
  PEM_write_X509(file, certificate);
  std::fclose(file);
  file = std::fopen((folder + "/" + name + ".key").c_str(), "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_EXTENSION_free(names);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

std::string Record(int64_t trajectory_id, int64_t group_id, int32_t member, int64_t bytes) {
  return Encode(
      SimpleTrajectory({.trajectory_id = trajectory_id, .group_id = group_id, .member = member}, 0,
                       4, static_cast<int32_t>(std::max<int64_t>(1, (bytes - 170) / 8))));
}

}  // namespace forebay::buffer
