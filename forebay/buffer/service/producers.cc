#include "forebay/buffer/service/producers.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "fmt/core.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/service/messages.h"

namespace forebay::buffer {
namespace {

// The oldest registrations go above it: their holders cannot resume any more, nothing else.
constexpr size_t kNamesMax = 10'000;

std::string Hex(const SessionSecret& secret) {
  std::string out;
  for (const uint8_t byte : secret) out += fmt::format("{:02x}", byte);
  return out;
}

bool FromHex(std::string_view text, SessionSecret& secret) {
  if (text.size() != 2 * secret.size()) return false;
  for (size_t i = 0; i < secret.size(); ++i) {
    const char* at = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(at, at + 2, secret[i], 16);
    if (error != std::errc() || end != at + 2) return false;
  }
  return true;
}

std::string_view View(const SessionSecret& secret) {
  return {reinterpret_cast<const char*>(secret.data()), secret.size()};
}

Status Fenced(const std::string& name) {
  return FailedPrecondition(fmt::format(
      "producer '{}' was registered again by somebody else, or forgotten after {} others: "
      "this holder is fenced and may not append any more",
      name, kNamesMax));
}

}  // namespace

bool SameSecret(std::string_view a, std::string_view b) {
  // Of the digests, so that the lengths do not show either.
  std::array<unsigned char, SHA256_DIGEST_LENGTH> da{};
  std::array<unsigned char, SHA256_DIGEST_LENGTH> db{};
  SHA256(reinterpret_cast<const unsigned char*>(a.data()), a.size(), da.data());
  SHA256(reinterpret_cast<const unsigned char*>(b.data()), b.size(), db.data());
  return CRYPTO_memcmp(da.data(), db.data(), da.size()) == 0;
}

Result<std::unique_ptr<Producers>> Producers::Open(const std::string& folder,
                                                   int64_t next_trajectory_id) {
  auto out = std::make_unique<Producers>();
  const int64_t next_number = ((next_trajectory_id - 1) >> kProducerShift) + 1;
  {
    const MutexLock lock(out->mutex_);
    out->next_number_ = std::max(out->next_number_, next_number);
  }
  if (folder.empty()) return out;
  FB_RETURN_IF_ERROR(MakeFolders(folder));
  const std::string lock_path = folder + "/producers.lock";
  out->lock_ = Fd(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!out->lock_.valid()) return ErrnoStatus("cannot open '" + lock_path + "'", errno);
  if (::flock(out->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus("cannot lock '" + lock_path + "'", errno);
    return FailedPrecondition(fmt::format(
        "another process serves buffers of '{}': stop it, or use another folder", folder));
  }
  out->path_ = folder + "/producers.json";
  const Result<std::string> text = ReadFile(out->path_, size_t{64} << 20);
  if (text.status().code() == StatusCode::kNotFound) return out;
  FB_RETURN_IF_ERROR(text.status());
  const Status broken = DataLoss(fmt::format(
      "'{}' is damaged: the ids that were given out are not known. Restore it, or remove "
      "it together with the buffer's folders",
      out->path_));
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  try {
    const MutexLock lock(out->mutex_);
    out->next_number_ = json.at("next_number").get<int64_t>();
    for (const auto& [name, entry] : json.at("producers").items()) {
      Producer producer{.number = entry.at("number").get<int64_t>(),
                        .epoch = entry.at("epoch").get<int64_t>()};
      if (!ValidName(name) || producer.number < 1 || producer.number >= out->next_number_ ||
          producer.epoch < 1 || !FromHex(entry.at("secret").get<std::string>(), producer.secret)) {
        return broken;
      }
      out->names_[name] = producer;
    }
    out->next_number_ = std::max(out->next_number_, next_number);
  } catch (const nlohmann::json::exception&) {
    return broken;
  }
  return out;
}

Status Producers::Save() {
  if (path_.empty()) return OkStatus();
  nlohmann::json producers = nlohmann::json::object();
  for (const auto& [name, producer] : names_) {
    producers[name] = {
        {"number", producer.number}, {"epoch", producer.epoch}, {"secret", Hex(producer.secret)}};
  }
  const nlohmann::json json = {{"next_number", next_number_}, {"producers", std::move(producers)}};
  // It holds secrets. WriteFileAtomic leaves the mode of a file that is there.
  const std::string aside = path_ + ".tmp";
  const Fd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid() || ::fchmod(fd.get(), 0600) != 0) {
    return ErrnoStatus("cannot create '" + aside + "'", errno);
  }
  return WriteFileAtomic(path_, json.dump());
}

Result<Producer> Producers::Register(const std::string& name) {
  const MutexLock lock(mutex_);
  if (next_number_ > kProducersMax) {
    return ResourceExhausted(
        fmt::format("{} producers were registered: there are no more ids", kProducersMax));
  }
  const auto before = names_.find(name);
  Producer producer{.number = next_number_,
                    .epoch = before == names_.end() ? 1 : before->second.epoch + 1};
  if (RAND_bytes(producer.secret.data(), static_cast<int>(producer.secret.size())) != 1) {
    return Internal("no random bytes for a session secret");
  }
  // The one that goes: the name's last registration, or the oldest of all.
  auto gone = before;
  if (gone == names_.end() && names_.size() >= kNamesMax) {
    gone =
        std::ranges::min_element(names_, {}, [](const auto& entry) { return entry.second.number; });
  }
  decltype(names_)::node_type old;
  if (gone != names_.end()) old = names_.extract(gone);
  names_[name] = producer;
  ++next_number_;  // stays so if Save fails: whether the file was written is not known
  if (Status saved = Save(); !saved.ok()) {
    names_.erase(name);
    names_.insert(std::move(old));
    return saved.WithContext("the registration could not be kept");
  }
  return producer;
}

Result<Producer> Producers::Resume(const std::string& name, const SessionSecret& secret) const {
  const MutexLock lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end() || !SameSecret(View(found->second.secret), View(secret))) {
    return Fenced(name);
  }
  return found->second;
}

}  // namespace forebay::buffer
