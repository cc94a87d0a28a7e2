#include "forebay/buffer/client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/service/client_connection.h"
#include "forebay/buffer/service/client_impl.h"
#include "forebay/buffer/service/client_session.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/producers.h"

namespace forebay::buffer {

Result<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  FB_ASSIGN_OR_RETURN(std::unique_ptr<ClientSession> session, ClientSession::Create(options));
  auto client = std::make_unique<ClientImpl>(std::move(session));
  FB_RETURN_IF_ERROR(client->Open());
  return std::unique_ptr<Client>(std::move(client));
}

ClientImpl::ClientImpl(std::unique_ptr<ClientSession> session) : session_(std::move(session)) {}

ClientImpl::~ClientImpl() { Close(Now()); }

Status ClientImpl::Open() {
  const ClientOptions& options = session_->options();
  const TimePoint deadline = Now() + options.connect_deadline;
  for (int32_t i = 0; i < options.connections; ++i) {
    appends_.push_back(std::make_unique<ClientConnection>(*session_, Purpose::kAppends));
    FB_RETURN_IF_ERROR(appends_.back()->Connect(deadline));
  }
  const Welcome welcome = session_->welcome();
  for (size_t i = 0; i < welcome.tables.size(); ++i) {
    tables_.push_back(
        std::make_unique<RemoteTableImpl>(*this, welcome.tables[i], static_cast<uint16_t>(i)));
  }
  producer_number_ = welcome.producer_number;
  epoch_ = welcome.epoch;
  return OkStatus();
}

Result<RemoteTable*> ClientImpl::Table(std::string_view name) {
  for (const auto& table : tables_) {
    if (table->name() == name) return table.get();
  }
  std::string there;
  for (const std::string& each : tables()) there += (there.empty() ? "" : ", ") + each;
  return NotFound(fmt::format("the server has no table '{}'; it has: {}", name, there));
}

std::vector<std::string> ClientImpl::tables() const {
  std::vector<std::string> names;
  names.reserve(tables_.size());
  for (const auto& table : tables_) names.push_back(table->name());
  return names;
}

int64_t ClientImpl::NewIds(int64_t count) {
  FB_CHECK(producer_number_ > 0, "ids need ClientOptions::producer");
  const int64_t first = next_sequence_.fetch_add(count);
  FB_CHECK(count > 0 && first + count <= (int64_t{1} << kProducerShift), "2^40 ids of one client");
  return (producer_number_ << kProducerShift) + first;
}

ClientConnection& ClientImpl::AppendConnection() {
  if (appends_.size() == 1) return *appends_.front();
  // Threads are spread over the connections and stay on theirs.
  static std::atomic<uint32_t> next_thread{0};
  thread_local const uint32_t thread = next_thread.fetch_add(1);
  return *appends_[thread % appends_.size()];
}

Result<ClientConnection*> ClientImpl::ReadConnection(TimePoint deadline) {
  const MutexLock lock(reads_mutex_);
  if (closed_) return Cancelled("the client was closed");
  if (reads_ == nullptr) {
    auto connection = std::make_unique<ClientConnection>(*session_, Purpose::kReads);
    FB_RETURN_IF_ERROR(
        connection->Connect(std::min(deadline, Now() + session_->options().connect_deadline)));
    reads_ = std::move(connection);
  }
  return reads_.get();
}

void ClientImpl::ReserveAsync(int64_t bytes) {
  const int64_t bytes_max = session_->options().unacknowledged_bytes_max;
  const MutexLock lock(async_mutex_);
  while (async_bytes_ > 0 && async_bytes_ + bytes > bytes_max) {
    async_room_.WaitUntil(async_mutex_, Now() + std::chrono::hours(1));
  }
  async_bytes_ += bytes;
}

void ClientImpl::ReleaseAsync(int64_t bytes) {
  {
    const MutexLock lock(async_mutex_);
    async_bytes_ -= bytes;
  }
  async_room_.NotifyAll();
}

ClientStats ClientImpl::stats() const {
  ClientStats stats;
  for (const auto& connection : appends_) connection->AddStats(stats);
  const MutexLock lock(reads_mutex_);
  if (reads_ != nullptr) reads_->AddStats(stats);
  return stats;
}

void ClientImpl::Close(TimePoint deadline) {
  for (const auto& connection : appends_) connection->WaitIdle(deadline);
  const Status why = Cancelled("the client was closed");
  for (const auto& connection : appends_) connection->Close(why);
  const MutexLock lock(reads_mutex_);
  closed_ = true;
  if (reads_ != nullptr) reads_->Close(why);
}

}  // namespace forebay::buffer
