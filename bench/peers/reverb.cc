#include <memory>

#include "bench/buffer_engine.h"
#include "bench/peers/peers.h"
#include "forebay/base/status.h"
#ifdef FOREBAY_BENCH_GRPC
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/peers/reverb_wire.h"
#include "bench/peers/server_process.h"
#include "forebay/base/file.h"
#endif

namespace forebay::bench {

#ifdef FOREBAY_BENCH_GRPC
namespace {

constexpr char kTable[] = "q";
constexpr char kService[] = "/deepmind.reverb.ReverbService/";

std::chrono::system_clock::time_point Deadline() {
  return std::chrono::system_clock::now() + std::chrono::milliseconds(kEngineWaitMsMax);
}

// One bidirectional call, used by one thread: it waits for each of its steps.
class Stream {
 public:
  Stream(grpc::GenericStub& stub, const std::string& method)
      : call_(stub.PrepareCall(&context_, kService + method, &queue_)) {
    call_->StartCall(nullptr);
  }
  ~Stream() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    while (pending_ > 0 && WaitForOne()) {
    }
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Status Started() { return WaitForAll("start"); }
  // Sends a message and waits for the next one of the server's.
  Status Ask(const grpc::ByteBuffer& request, grpc::ByteBuffer& answer) {
    call_->Write(request, nullptr);
    call_->Read(&answer, nullptr);
    pending_ += 2;
    return WaitForAll("request");
  }
  Status Read(grpc::ByteBuffer& answer) {
    call_->Read(&answer, nullptr);
    ++pending_;
    return WaitForAll("answer");
  }

 private:
  bool WaitForOne() {
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, Deadline()) != grpc::CompletionQueue::GOT_EVENT) return false;
    --pending_;
    return ok;
  }
  Status WaitForAll(const char* what) {
    while (pending_ > 0) {
      if (!WaitForOne())
        return Unavailable(std::string("Reverb's stream ended, or hung, at a ") + what);
    }
    return OkStatus();
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  int pending_ = 1;  // the start
};

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

Result<grpc::Slice> Whole(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.DumpToSingleSlice(&slice).ok()) return DataLoss("Reverb sent a broken message");
  return slice;
}
std::string_view View(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

class ReverbEngine final : public Engine {
 public:
  ReverbEngine(std::string folder, std::string peers_folder)
      : folder_(std::move(folder)), peers_folder_(std::move(peers_folder)) {}

  Status Start() {
    FB_RETURN_IF_ERROR(MakeFolders(folder_));
    const std::string python = peers_folder_ + "/reverb/bin/python";
    if (FindProgram(python).empty()) return NotFound("there is no " + python);
    FB_ASSIGN_OR_RETURN(port_, FreePort());
    FB_ASSIGN_OR_RETURN(
        server_, ServerProcess::Start(
                     {.program = "env",
                      .args = {"TMPDIR=" + folder_, "TF_CPP_MIN_LOG_LEVEL=2", python,
                               std::string(FOREBAY_SOURCE_DIR) + "/bench/peers/reverb_server.py",
                               std::to_string(port_)},
                      .log = folder_ + "/log",
                      .ready = [this] { return Accepts(port_); }}));
    return OkStatus();
  }

  Status Open(int writers, int /*readers*/) override {
    FB_RETURN_IF_ERROR(Reset());
    for (int i = 0; i < writers; ++i) {
      stubs_.push_back(Connect(i));
      writers_.push_back(std::make_unique<Stream>(*stubs_.back(), "InsertStream"));
    }
    for (const auto& writer : writers_) FB_RETURN_IF_ERROR(writer->Started());
    stubs_.push_back(Connect(writers));
    reader_ = std::make_unique<Stream>(*stubs_.back(), "SampleStream");
    return reader_->Started();
  }

  Status Insert(const Record& record) override {
    const uint64_t key =
        (static_cast<uint64_t>(record.writer) << 48U) | static_cast<uint64_t>(record.seq + 1);
    const std::array<grpc::Slice, 2> slices = {
        grpc::Slice(ReverbInsertPrefix(key, kTable, record.bytes.size())),
        // Not copied: the server has it all before it confirms.
        grpc::Slice(record.bytes.data(), record.bytes.size(), grpc::Slice::STATIC_SLICE)};
    grpc::ByteBuffer answer;
    FB_RETURN_IF_ERROR(writers_[static_cast<size_t>(record.writer)]->Ask(
        grpc::ByteBuffer(slices.data(), slices.size()), answer));
    FB_ASSIGN_OR_RETURN(const grpc::Slice whole, Whole(answer));
    FB_ASSIGN_OR_RETURN(const size_t confirmed, ReverbConfirmed(View(whole)));
    return confirmed == 1 ? OkStatus() : Internal("Reverb confirmed another number of items");
  }

  Status Sample(int /*reader*/, BatchSink& sink) override {
    grpc::ByteBuffer answer;
    FB_RETURN_IF_ERROR(reader_->Ask(BufferOf(ReverbSampleRequest(kTable, kBatchRecords)), answer));
    while (true) {
      FB_ASSIGN_OR_RETURN(const grpc::Slice whole, Whole(answer));
      FB_ASSIGN_OR_RETURN(const auto tensors, ReverbSampledTensors(View(whole)));
      for (const std::string_view tensor : tensors) {
        if (!sink.Add(tensor.data(), tensor.size())) return DataLoss("a record grew");
      }
      if (sink.records().size() >= kBatchRecords) return OkStatus();
      answer.Clear();
      FB_RETURN_IF_ERROR(reader_->Read(answer));
    }
  }

  Status Close() override {
    reader_.reset();
    writers_.clear();
    stubs_.clear();
    return OkStatus();
  }

  std::string Description() const override {
    return "Reverb 0.14's server, memory only, a queue; C++ client: bare gRPC streams, "
           "uncompressed chunks made without a copy, a connection for each writer";
  }

 private:
  // A connection of its own: equal arguments would share one.
  std::unique_ptr<grpc::GenericStub> Connect(int number) const {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt("forebay.connection", number);
    return std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(port_), grpc::InsecureChannelCredentials(), arguments));
  }

  // Empties the table.
  Status Reset() const {
    const std::unique_ptr<grpc::GenericStub> stub = Connect(-1);
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    grpc::CompletionQueue queue;
    const auto call = stub->PrepareUnaryCall(&context, std::string(kService) + "Reset",
                                             BufferOf(ReverbResetRequest(kTable)), &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    if (!status.ok()) return Unavailable("Reverb, reset: " + status.error_message());
    return OkStatus();
  }

  const std::string folder_, peers_folder_;
  int port_ = 0;
  std::unique_ptr<ServerProcess> server_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::unique_ptr<Stream>> writers_;
  std::unique_ptr<Stream> reader_;
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeReverb(const PeerOptions& options) {
  auto engine = std::make_unique<ReverbEngine>(options.folder + "/reverb", options.peers_folder);
  const Status started = engine->Start();
  if (started.code() == StatusCode::kNotFound) return PeerMissing("Reverb (dm-reverb)");
  FB_RETURN_IF_ERROR(started);
  return std::unique_ptr<Engine>(std::move(engine));
}
#else
Result<std::unique_ptr<Engine>> MakeReverb(const PeerOptions& /*options*/) {
  return PeerMissing("gRPC, to speak to Reverb (libgrpc++-dev)");
}
#endif

}  // namespace forebay::bench
