#include "forebay/xla/pjrt/api.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/base/status.h"

namespace forebay::xla::pjrt {
namespace {

// A compiler's message can quote a whole module; the start names the fault.
constexpr size_t kErrorMessageBytesMax = 4096;

StatusCode ToStatusCode(PJRT_Error_Code code) {
  switch (code) {
    case PJRT_Error_Code_INVALID_ARGUMENT:
    case PJRT_Error_Code_OUT_OF_RANGE:
      return StatusCode::kInvalidArgument;
    case PJRT_Error_Code_NOT_FOUND:
      return StatusCode::kNotFound;
    case PJRT_Error_Code_ALREADY_EXISTS:
      return StatusCode::kAlreadyExists;
    case PJRT_Error_Code_DATA_LOSS:
      return StatusCode::kDataLoss;
    case PJRT_Error_Code_RESOURCE_EXHAUSTED:
      return StatusCode::kResourceExhausted;
    case PJRT_Error_Code_DEADLINE_EXCEEDED:
      return StatusCode::kDeadlineExceeded;
    case PJRT_Error_Code_UNAVAILABLE:
      return StatusCode::kUnavailable;
    case PJRT_Error_Code_CANCELLED:
    case PJRT_Error_Code_ABORTED:
      return StatusCode::kCancelled;
    case PJRT_Error_Code_FAILED_PRECONDITION:
      return StatusCode::kFailedPrecondition;
    case PJRT_Error_Code_UNIMPLEMENTED:
      return StatusCode::kUnimplemented;
    default:
      return StatusCode::kInternal;
  }
}

}  // namespace

Status Api::ToStatus(PJRT_Error* error, std::string_view name) const {
  if (error == nullptr) return OkStatus();
  PJRT_Error_Message_Args message = {};
  message.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  message.error = error;
  table_->PJRT_Error_Message(&message);
  std::string text;
  if (message.message != nullptr) text.assign(message.message, message.message_size);
  if (text.size() > kErrorMessageBytesMax) {
    text.resize(kErrorMessageBytesMax);
    text += " ... (shortened)";
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();

  PJRT_Error_GetCode_Args code = {};
  code.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE;
  code.error = error;
  StatusCode status_code = StatusCode::kInternal;
  if (PJRT_Error* second = table_->PJRT_Error_GetCode(&code); second == nullptr) {
    status_code = ToStatusCode(code.code);
  } else {
    PJRT_Error_Destroy_Args destroy = {PJRT_Error_Destroy_Args_STRUCT_SIZE, nullptr, second};
    table_->PJRT_Error_Destroy(&destroy);
  }

  PJRT_Error_Destroy_Args destroy = {PJRT_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  table_->PJRT_Error_Destroy(&destroy);
  return {status_code, fmt::format("{}: {}", name, text)};
}

Status Api::Missing(std::string_view name) const {
  return Unimplemented(fmt::format("the PJRT plugin (API {}.{}) has no {}: use a newer plugin",
                                   table_->pjrt_api_version.major_version,
                                   table_->pjrt_api_version.minor_version, name));
}

Status Api::AwaitAndDestroy(PJRT_Event* event, std::string_view what) const {
  if (event == nullptr) return OkStatus();
  PJRT_Event_Await_Args await = {};
  await.event = event;
  Status status = Call(&PJRT_Api::PJRT_Event_Await, what, PJRT_Event_Await_Args_STRUCT_SIZE, await);
  Destroy(event);
  return status;
}

void Api::Destroy(PJRT_Event* event) const {
  if (event == nullptr) return;
  PJRT_Event_Destroy_Args args = {};
  args.event = event;
  // Freeing fails only for a foreign pointer, which would be our bug.
  const Status status = FB_PJRT(*this, PJRT_Event_Destroy, args);
  FB_CHECK(status.ok(), status.ToString());
}

}  // namespace forebay::xla::pjrt
