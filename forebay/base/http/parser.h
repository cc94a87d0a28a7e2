// HttpParser: the bytes of one HTTP/1.1 message as a request or response, bounded. Hides
// Boost.Beast.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "forebay/base/http.h"
#include "forebay/base/status.h"

namespace forebay::http {

class HttpParser {
 public:
  struct Options {
    bool request = true;
    size_t header_bytes_max = 0;
    size_t body_bytes_max = 0;
    bool no_body = false;  // the response to a HEAD request
  };
  explicit HttpParser(const Options& options);
  ~HttpParser();
  HttpParser(const HttpParser&) = delete;
  HttpParser& operator=(const HttpParser&) = delete;

  // Takes what it can from the front of `input`; what follows the message stays. kDataLoss: not
  // HTTP; kResourceExhausted: header or body too long (a body that announces its length before any
  // of it is taken). Nothing more can be fed after an error.
  Status Feed(std::string* input);
  // The peer has ended the stream. kUnavailable when the message was not complete.
  Status FeedEnd();

  bool header_done() const;
  bool done() const;
  bool keep_alive() const;        // of a message whose header is done
  bool http11() const;            // else 1.0
  bool expects_continue() const;  // of a request
  bool too_long_header() const;   // what kResourceExhausted was about
  size_t body_bytes() const;      // that have come so far, taken ones included

  // method, url (the target) and headers; for a response status and headers.
  HttpRequest& request();
  HttpResponse& response();
  // The body's bytes that have come and were not taken.
  std::string TakeBody();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay::http
