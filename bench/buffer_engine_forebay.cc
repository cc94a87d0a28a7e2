#include "bench/buffer_engine_forebay.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "bench/buffer_engine.h"
#include "bench/peers/server_process.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/server.h"

namespace forebay::bench {
namespace {

constexpr char kTable[] = "train";
// A client pipelines many threads over a few connections.
constexpr int kConnectionsMax = 4;

TimePoint Deadline() { return Now() + std::chrono::milliseconds(kEngineWaitMsMax); }

buffer::BufferOptions Options(const std::string& folder, buffer::Durability durability) {
  return {.folder = folder,
          .durability = durability,
          .group_size = 1,
          .max_staleness = 1,
          .implied_dispatch = true};
}

// From a Buffer or a RemoteTable.
template <typename Source>
Status TakeBatch(Source& source, BatchSink& sink) {
  FB_ASSIGN_OR_RETURN(const buffer::Taken taken,
                      source.Take({.groups = kBatchRecords}, Deadline()));
  for (const buffer::TrajectoryView& view : taken.trajectories) {
    if (!sink.Add(view.encoded.data(), view.encoded.size())) return DataLoss("a record grew");
  }
  return source.Acknowledge(taken.take_id);
}

void Remove(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

class ForebayEngine final : public Engine {
 public:
  ForebayEngine(std::string folder, buffer::Durability durability)
      : folder_(std::move(folder)), durability_(durability) {}

  Status Open(int /*writers*/, int /*readers*/) override {
    Remove(folder_);
    buffer::Recovery recovery;
    FB_ASSIGN_OR_RETURN(buffer_,
                        buffer::Buffer::Open(Options(folder_, durability_), 0, {}, &recovery));
    return OkStatus();
  }
  Status Insert(const Record& record) override {
    return buffer_->AppendEncodedAndWait(record.bytes, {.deadline = Deadline()});
  }
  Status Sample(int /*reader*/, BatchSink& sink) override { return TakeBatch(*buffer_, sink); }
  Status Close() override {
    buffer_->Close();
    buffer_.reset();
    Remove(folder_);
    return OkStatus();
  }

 private:
  const std::string folder_;
  const buffer::Durability durability_;
  std::unique_ptr<buffer::Buffer> buffer_;
};

class ServedForebayEngine final : public Engine {
 public:
  ServedForebayEngine(std::string folder, buffer::Durability durability)
      : folder_(std::move(folder)),
        // Not below the data folder: the path of a Unix socket has at most 107 characters.
        socket_((std::filesystem::temp_directory_path() /
                 ("forebay-bench-" + std::to_string(getpid()) +
                  (durability == buffer::Durability::kSync ? "s" : "o")))
                    .string()),
        sync_(durability == buffer::Durability::kSync) {}
  ~ServedForebayEngine() override { End(); }

  Status Open(int writers, int /*readers*/) override {
    End();
    FB_RETURN_IF_ERROR(MakeFolders(folder_));
    const buffer::ClientOptions options = {.address = "unix:" + socket_,
                                           .producer = "bench",
                                           .connections = std::min(writers, kConnectionsMax),
                                           .connect_deadline = std::chrono::milliseconds(200)};
    FB_ASSIGN_OR_RETURN(
        server_, ServerProcess::Start({.program = "/proc/self/exe",
                                       .args = {"serve-buffer", folder_ + "/data", options.address,
                                                sync_ ? "sync" : "os"},
                                       .log = folder_ + "/log",
                                       .ready = [&] { return Connect(options).ok(); }}));
    FB_ASSIGN_OR_RETURN(table_, client_->Table(kTable));
    return OkStatus();
  }
  int64_t id_base() const override { return client_->producer_number() * kIdBaseUnit; }
  Status Insert(const Record& record) override {
    return table_->AppendEncodedAndWait(record.bytes, {.deadline = Deadline()});
  }
  Status Sample(int /*reader*/, BatchSink& sink) override { return TakeBatch(*table_, sink); }
  Status Close() override {
    client_->Close(Deadline());
    End();
    return OkStatus();
  }
  std::string Description() const override { return "over a Unix socket, one client"; }

 private:
  Status Connect(const buffer::ClientOptions& options) {
    FB_ASSIGN_OR_RETURN(client_, buffer::Client::Connect(options));
    return OkStatus();
  }
  void End() {
    table_ = nullptr;
    client_.reset();
    server_.reset();
    Remove(folder_);
    Remove(socket_);
  }

  const std::string folder_, socket_;
  const bool sync_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<buffer::Client> client_;
  buffer::RemoteTable* table_ = nullptr;  // the client's
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeForebay(const std::string& folder,
                                            buffer::Durability durability) {
  return std::unique_ptr<Engine>(std::make_unique<ForebayEngine>(folder, durability));
}

Result<std::unique_ptr<Engine>> MakeServedForebay(const std::string& folder,
                                                  buffer::Durability durability) {
  return std::unique_ptr<Engine>(std::make_unique<ServedForebayEngine>(folder, durability));
}

Status ServeBuffer(const std::string& folder, const std::string& address,
                   std::string_view durability) {
  const buffer::BufferOptions options =
      Options(folder, durability == "sync" ? buffer::Durability::kSync : buffer::Durability::kOs);
  buffer::Recovery recovery;
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<buffer::Buffer> served,
                      buffer::Buffer::Open(options, 0, {}, &recovery));
  FB_ASSIGN_OR_RETURN(
      const std::unique_ptr<buffer::Server> server,
      buffer::Server::Start(
          {{kTable,
            {.buffer = served.get(), .implied_dispatch = true, .group_size = options.group_size}}},
          {.listen = {address}}));
  while (true) pause();
}

}  // namespace forebay::bench
