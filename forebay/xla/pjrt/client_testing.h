// What the tests of the Client share: small programs as text, and a client of the real CPU plugin.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

inline const Shape kVector{DType::kF32, {4}};

// x + y, where x may give its memory to the result.
inline Program AddProgram(bool donate) {
  const std::string alias = donate ? " {tf.aliasing_output = 0 : i32}" : "";
  return {.name = "add",
          .stablehlo = "module @add { func.func public @main(%x: tensor<4xf32>" + alias +
                       ", %y: tensor<4xf32>) -> tensor<4xf32> {\n"
                       "  %0 = stablehlo.add %x, %y : tensor<4xf32>\n"
                       "  return %0 : tensor<4xf32>\n} }\n",
          .arguments = {kVector, kVector},
          .argument_names = {"x", "y"},
          .results = {kVector},
          .donated_to = {donate ? 0 : -1, -1}};
}

// x times y `count` times: long enough to still run when Execute has returned.
inline Program ProductProgram(int size, int count) {
  const std::string type = "tensor<" + std::to_string(size) + "x" + std::to_string(size) + "xf32>";
  std::string body;
  std::string last = "%x";
  for (int i = 0; i < count; ++i) {
    const std::string next = "%p" + std::to_string(i);
    body += fmt::format(
        "  {0} = stablehlo.dot_general {1}, %y, contracting_dims = [1] x [0] : ({2}, {2}) -> {2}\n",
        next, last, type);
    last = next;
  }
  const Shape shape{DType::kF32, {size, size}};
  return {.name = "product",
          .stablehlo = "module @product { func.func public @main(%x: " + type + ", %y: " + type +
                       ") -> " + type + " {\n" + body + "  return " + last + " : " + type +
                       "\n} }\n",
          .arguments = {shape, shape},
          .argument_names = {"x", "y"},
          .results = {shape},
          .donated_to = {-1, -1}};
}

inline std::unique_ptr<Client> MakeClient(const ClientOptions& options = {}) {
  Result<std::unique_ptr<Client>> client = Client::Create(options);
  EXPECT_TRUE(client.ok()) << client.status().ToString();
  return client.ok() ? std::move(client).value() : nullptr;
}

inline Buffer Vector(Client& client, const std::vector<float>& values) {
  return client.FromVector(values, Shape{DType::kF32, {static_cast<int64_t>(values.size())}})
      .value();
}

inline std::vector<float> Floats(const Buffer& buffer) {
  const Result<std::vector<float>> values = buffer.ToVector<float>();
  EXPECT_TRUE(values.ok()) << values.status().ToString();
  return values.ok() ? *values : std::vector<float>();
}

inline Result<std::vector<Buffer>> Call(Executable& executable, std::vector<Buffer*> arguments) {
  return executable.Execute(arguments);
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "forebay_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace forebay::xla
