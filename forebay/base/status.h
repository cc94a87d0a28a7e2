// Status and Result<T>: how every room reports what can go wrong.
//
// A Status is either OK or a code with a message that a user can act on (what was wrong, where,
// what would be right). Nothing throws across rooms: library exceptions are converted where they
// are called. Our own bugs are not a Status: they are an FB_CHECK (base/check.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/check.h"

namespace forebay {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,     // the caller's value is wrong (a config key, a shape, a file's content)
  kNotFound,            // a file, model, plugin or id that does not exist
  kAlreadyExists,       // an id or a run directory that must be new
  kDataLoss,            // corrupt or truncated bytes; garbage from a peer
  kResourceExhausted,   // a named limit was reached (memory, disk, slots)
  kDeadlineExceeded,    // a wait ended before its event
  kUnavailable,         // the peer is gone: a dead process, a closed queue
  kCancelled,           // shutdown or cancellation asked for by the owner
  kFailedPrecondition,  // not in a state where this call is allowed
  kUnimplemented,       // the plugin or peer lacks this function
  kInternal,            // a library failed in a way we did not foresee
};

// The lower_case name of a code, for logs ("deadline_exceeded").
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "ok" or "code: message".
  std::string ToString() const;

  // The same error, its message prefixed with "context: ". OK stays OK.
  Status WithContext(std::string_view context) const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status DataLoss(std::string message);
Status ResourceExhausted(std::string message);
Status DeadlineExceeded(std::string message);
Status Unavailable(std::string message);
Status Cancelled(std::string message);
Status FailedPrecondition(std::string message);
Status Unimplemented(std::string message);
Status Internal(std::string message);

// A value or the reason why there is none. Reading the value of an error is a bug (CHECK).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    FB_CHECK(!status_.ok(), "a Result needs a value or an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& Checked() {
    FB_CHECK(value_.has_value(), status_.ToString());
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace forebay

#define FB_CONCAT_INNER(a, b) a##b
#define FB_CONCAT(a, b) FB_CONCAT_INNER(a, b)

// Returns from the enclosing function (Status or Result) when the expression is an error.
#define FB_RETURN_IF_ERROR(expr)                                                 \
  do {                                                                           \
    if (::forebay::Status fb_status = (expr); !fb_status.ok()) return fb_status; \
  } while (false)

// FB_ASSIGN_OR_RETURN(auto x, F()): declares or assigns x, or returns F()'s error.
#define FB_ASSIGN_OR_RETURN(lhs, expr) \
  FB_ASSIGN_OR_RETURN_INNER(FB_CONCAT(fb_result_, __LINE__), lhs, expr)
#define FB_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                              \
  if (!result.ok()) return result.status();          \
  lhs = std::move(result).value()
