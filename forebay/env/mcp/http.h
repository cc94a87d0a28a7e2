// An MCP server behind HTTP ("streamable HTTP"): each request is a POST, its answer a JSON body or
// a stream of events.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "forebay/base/http_client.h"
#include "forebay/env/json_work.h"
#include "forebay/env/mcp/transport.h"

namespace forebay::env::mcp {

struct HttpTransportOptions {
  std::string url;
  std::string bearer;
  size_t message_bytes_max = 0;
};

// `client` is shared by connections and outlives them. Nothing is sent yet.
std::shared_ptr<Transport> MakeHttp(std::shared_ptr<HttpClient> client, JsonWork work,
                                    HttpTransportOptions options);

}  // namespace forebay::env::mcp
