// The commands that only read and print: audit, devices, config; and the exit codes.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "apps/commands.h"
#include "forebay/base/status.h"
#include "forebay/control/audit.h"
#include "forebay/control/config.h"
#include "forebay/xla/client.h"

namespace forebay::apps {

Status AuditRun(const AuditCommand& command) {
  FB_ASSIGN_OR_RETURN(const control::AuditReport report, control::Audit(command.run));
  std::puts(command.json ? control::AuditJson(report).c_str()
                         : control::FormatAudit(report).c_str());
  return OkStatus();
}

Status Devices(const DevicesCommand& command) {
  FB_ASSIGN_OR_RETURN(const std::string path, xla::FindPlugin(command.plugin));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<xla::Client> client,
                      xla::Client::Create({.plugin_path = path}));
  // Others beside it can be named with --plugin, device.plugin or FOREBAY_PJRT_PLUGIN.
  std::error_code error;
  for (const auto& file :
       std::filesystem::directory_iterator(std::filesystem::path(path).parent_path(), error)) {
    if (file.path().extension() == ".so" && file.path() != path) {
      std::printf("found     %s\n", file.path().c_str());
    }
  }
  const auto [major, minor] = client->api_version();
  std::printf("plugin    %s\nplatform  %s %s\nPJRT API  %d.%d\n", path.c_str(),
              client->platform().c_str(), client->platform_version().c_str(), major, minor);
  for (const xla::DeviceInfo& device : client->devices()) {
    std::printf("device %d  %s%s  %s\n", device.id, device.kind.c_str(),
                device.addressable ? "" : " (not addressable)", device.description.c_str());
  }
  return OkStatus();
}

Status PrintConfigKeys() {
  std::fputs(control::DescribeConfig().c_str(), stdout);
  return OkStatus();
}

int ExitCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInvalidArgument:
    case StatusCode::kAlreadyExists:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kUnimplemented:
      return 2;
    case StatusCode::kNotFound:
      return 3;
    case StatusCode::kDataLoss:
      return 4;
    case StatusCode::kUnavailable:
      return 5;
    case StatusCode::kResourceExhausted:
      return 6;
    case StatusCode::kDeadlineExceeded:
      return 7;
    case StatusCode::kCancelled:
      return 130;
    case StatusCode::kInternal:
      return 1;
  }
  return 1;
}

}  // namespace forebay::apps
