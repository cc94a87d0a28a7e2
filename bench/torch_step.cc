#include "bench/torch_step.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/buffer_scratch.h"
#include "bench/peers/server_process.h"
#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"

namespace forebay::bench {
namespace {

constexpr int kStartMsMax = 120'000;

std::string Python() { return std::string(FOREBAY_SOURCE_DIR) + "/.deps/peers/torch/bin/python"; }

template <typename T>
void Put(std::ofstream& out, const T* values, size_t count) {
  out.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count * sizeof(T)));
}

Status WriteBatch(const std::string& path, const learner::MicroBatch& batch) {
  std::ofstream out(path, std::ios::binary);
  const std::array<int64_t, 2> dims = {batch.shape.rows, batch.shape.length};
  Put(out, dims.data(), dims.size());
  Put(out, batch.ints.data(), batch.ints.size());
  Put(out, batch.floats.data(), batch.floats.size());
  out.close();
  return out.good() ? OkStatus() : Unavailable("cannot write " + path);
}

}  // namespace

TorchStep::TorchStep(ScratchFolder folder) : folder_(std::move(folder)) {}

TorchStep::~TorchStep() {
  if (stream_ != nullptr) std::fclose(stream_);
}

bool TorchStep::Connect(const std::string& address) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  address.copy(name.sun_path, sizeof(name.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) {
    stream_ = fdopen(fd, "r+");
  }
  if (stream_ == nullptr) close(fd);
  return stream_ != nullptr;
}

std::vector<std::string> TorchStep::Variants() {
  if (FindProgram(Python()).empty()) return {};
  return {"eager", "compiled"};
}

Result<std::unique_ptr<TorchStep>> TorchStep::Create(const std::string& variant,
                                                     const weights::TensorMap& tensors,
                                                     const learner::MicroBatch& batch) {
  FB_ASSIGN_OR_RETURN(ScratchFolder folder, ScratchFolder::Create());
  std::unique_ptr<TorchStep> step(new TorchStep(std::move(folder)));
  const std::string& path = step->folder_.path();
  FB_RETURN_IF_ERROR(weights::WriteSafetensors(path + "/model.safetensors", tensors));
  FB_RETURN_IF_ERROR(WriteBatch(path + "/batch", batch));
  // Not below the folder: the path of a Unix socket has at most 107 characters.
  const std::string address = (std::filesystem::temp_directory_path() /
                               ("forebay-torch-" + std::to_string(getpid()) + variant))
                                  .string();
  FB_ASSIGN_OR_RETURN(
      step->process_,
      ServerProcess::Start(
          {.program = Python(),
           .args = {std::string(FOREBAY_SOURCE_DIR) + "/bench/peers/torch_learner.py",
                    path + "/model.safetensors", path + "/batch", address, variant},
           .log = path + "/log",
           .start_ms_max = kStartMsMax,
           .ready = [&] { return step->Connect(address); }}));
  unlink(address.c_str());
  return step;
}

Result<TorchOutcome> TorchStep::Run(double learning_rate) {
  char* line = nullptr;
  size_t size = 0;
  const bool told = std::fprintf(stream_, "%.9g\n", learning_rate) > 0 && std::fflush(stream_) == 0;
  const bool answered = told && getline(&line, &size, stream_) > 0;
  const std::unique_ptr<char, decltype(&std::free)> owner(line, &std::free);
  if (!answered) return Unavailable("torch_learner.py ended: see " + folder_.path() + "/log");
  try {
    const auto answer = nlohmann::json::parse(line);
    return TorchOutcome{.seconds = answer.at("seconds"),
                        .loss = answer.at("loss"),
                        .grad_norm = answer.at("grad_norm"),
                        .version = answer.at("torch")};
  } catch (const nlohmann::json::exception& error) {
    return DataLoss(std::string("torch_learner.py answered nonsense: ") + error.what());
  }
}

}  // namespace forebay::bench
