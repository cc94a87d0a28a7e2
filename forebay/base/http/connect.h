// Connect: a connection to a URL's origin.
#pragma once

#include <openssl/types.h>

#include <memory>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/connection.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::http {

// Tries every address of the host in turn; with TLS the handshake is done. `tls` may be null for
// plain URLs and must live until the connection is gone. kUnavailable, kDeadlineExceeded.
Task<Result<std::shared_ptr<Connection>>> Connect(Loop& loop, HttpUrl url, SSL_CTX* tls,
                                                  TimePoint deadline);

}  // namespace forebay::http
