#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using Json = nlohmann::ordered_json;
using xla::DType;

constexpr size_t kHeaderAlignment = 8;

std::string_view SafetensorsName(DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return "BOOL";
    case DType::kS8:
      return "I8";
    case DType::kU8:
      return "U8";
    case DType::kS32:
      return "I32";
    case DType::kU32:
      return "U32";
    case DType::kS64:
      return "I64";
    case DType::kU64:
      return "U64";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF32:
      return "F32";
  }
  CheckFailed(__FILE__, __LINE__, "dtype", "not a DType");
}

Status WriteAll(int fd, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(fmt::format("cannot write {}", path), errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return OkStatus();
}

Status WriteContent(const std::string& path, std::string_view header,
                    const std::vector<const HostTensor*>& tensors) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot create {}", path), errno);
  const uint64_t header_bytes = header.size();
  FB_RETURN_IF_ERROR(WriteAll(fd.get(), path, std::as_bytes(std::span(&header_bytes, 1))));
  FB_RETURN_IF_ERROR(WriteAll(fd.get(), path, std::as_bytes(std::span(header))));
  for (const HostTensor* tensor : tensors) {
    FB_RETURN_IF_ERROR(WriteAll(fd.get(), path, tensor->bytes()));
  }
  if (::fsync(fd.get()) != 0) return ErrnoStatus(fmt::format("cannot sync {}", path), errno);
  return OkStatus();
}

}  // namespace

Status WriteSafetensors(const std::string& path, const TensorMap& tensors) {
  // Wide types first: each tensor then starts at a multiple of its element size and can be used in
  // place.
  std::vector<std::pair<const std::string*, const HostTensor*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(&name, &tensor);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    const int64_t a_bytes = xla::ByteSize(a.second->shape().dtype);
    const int64_t b_bytes = xla::ByteSize(b.second->shape().dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : *a.first < *b.first;
  });

  // Text by hand: looking a key up in an ordered_json is linear in its size.
  std::string header =
      R"({"__metadata__":{"format":"pt"})";  // transformers refuses a file without it
  std::vector<const HostTensor*> contents;
  uint64_t begin = 0;
  for (const auto& [name, tensor] : order) {
    const uint64_t end = begin + tensor->bytes().size();
    const Json entry = {{"dtype", SafetensorsName(tensor->shape().dtype)},
                        {"shape", tensor->shape().dims},
                        {"data_offsets", {begin, end}}};
    try {
      header += fmt::format(",{}:{}", Json(*name).dump(), entry.dump());
    } catch (const Json::exception& e) {
      return InvalidArgument(fmt::format("a tensor's name is not UTF-8: {}", e.what()));
    }
    contents.push_back(tensor);
    begin = end;
  }
  header += '}';
  header.append((kHeaderAlignment - header.size() % kHeaderAlignment) % kHeaderAlignment, ' ');

  const std::string aside = path + ".tmp";
  if (const Status written = WriteContent(aside, header, contents); !written.ok()) {
    ::unlink(aside.c_str());
    return written;
  }
  if (std::rename(aside.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(fmt::format("cannot rename {} to {}", aside, path), errno);
  }
  const size_t slash = path.rfind('/');
  return SyncFolder(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace forebay::weights
