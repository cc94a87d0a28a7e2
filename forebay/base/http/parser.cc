#include "forebay/base/http/parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/string_type.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/verb.hpp>
#include <boost/optional/optional.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/http.h"
#include "forebay/base/status.h"

namespace forebay::http {
namespace {

namespace beast = boost::beast;
using beast::error_code;
using BeastText = beast::string_view;

// A whole last chunk. Beast 1.81 asserts that it is not shown less of one twice.
constexpr size_t kLastChunkBytes = 5;
constexpr size_t kFieldsMax = 256;
// Unparsed bytes beyond this are a chunk header or trailer that does not end.
constexpr size_t kUnparsedMax = size_t{64} << 10;

std::string_view View(BeastText text) { return {text.data(), text.size()}; }

// Collects what Beast's parser calls out; Beast itself only bounds what one call is given, so the
// sum of the fields is bounded here.
template <bool kRequest>
class Collector final : public beast::http::basic_parser<kRequest> {
 public:
  explicit Collector(const HttpParser::Options& options) : options_(options) {
    this->header_limit(
        static_cast<uint32_t>(std::min<size_t>(options.header_bytes_max, UINT32_MAX)));
    this->body_limit(uint64_t{options.body_bytes_max});
    this->eager(true);
    if (!kRequest && options.no_body) this->skip(true);
  }

  HttpRequest request;
  HttpResponse response;
  std::string body;
  size_t body_bytes = 0;
  uint64_t chunk_left = 0;  // of the chunk that is being read
  bool http11 = true;

 private:
  void on_request_impl(beast::http::verb, BeastText method, BeastText target, int version,
                       error_code& error) override {
    http11 = version >= 11;
    request.method = View(method);
    request.url = View(target);
    Count(method.size() + target.size(), error);
  }
  void on_response_impl(int code, BeastText reason, int, error_code& error) override {
    response.status = code;
    Count(reason.size(), error);
  }
  void on_field_impl(beast::http::field, BeastText name, BeastText value,
                     error_code& error) override {
    HttpHeaders& headers = kRequest ? request.headers : response.headers;
    Count(name.size() + value.size() + 4, error);
    if (headers.fields().size() >= kFieldsMax) error = beast::http::error::header_limit;
    if (!error) headers.Add(std::string(View(name)), std::string(View(value)));
  }
  void on_header_impl(error_code& error) override { error = {}; }
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code& error) override {
    error = {};
  }
  size_t on_body_impl(BeastText bytes, error_code& error) override { return Add(bytes, error); }
  void on_chunk_header_impl(uint64_t size, BeastText, error_code& error) override {
    error = {};
    chunk_left = size;
  }
  size_t on_chunk_body_impl(uint64_t, BeastText bytes, error_code& error) override {
    chunk_left -= bytes.size();
    return Add(bytes, error);
  }
  void on_finish_impl(error_code& error) override { error = {}; }

  void Count(size_t bytes, error_code& error) {
    error = {};
    header_bytes_ += bytes;
    if (header_bytes_ > options_.header_bytes_max) error = beast::http::error::header_limit;
  }
  size_t Add(BeastText bytes, error_code& error) {
    error = {};
    body_bytes += bytes.size();
    if (body_bytes > options_.body_bytes_max) {
      error = beast::http::error::body_limit;
      return 0;
    }
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }

  const HttpParser::Options options_;
  size_t header_bytes_ = 0;
};

}  // namespace

class HttpParser::Impl {
 public:
  explicit Impl(const Options& o) : options(o) {
    if (o.request) {
      as_request = std::make_unique<Collector<true>>(o);
    } else {
      as_response = std::make_unique<Collector<false>>(o);
    }
  }
  template <typename Fn>
  auto With(Fn&& fn) const {
    return as_request ? fn(*as_request) : fn(*as_response);
  }

  Status ToStatus(const error_code& error) {
    if (error == beast::http::error::header_limit || error == beast::http::error::buffer_overflow) {
      too_long_header = true;
      return ResourceExhausted(
          fmt::format("the header is longer than {} bytes", options.header_bytes_max));
    }
    if (error == beast::http::error::body_limit) {
      return ResourceExhausted(
          fmt::format("the body is longer than {} bytes", options.body_bytes_max));
    }
    if (error == beast::http::error::partial_message ||
        error == beast::http::error::end_of_stream) {
      return Unavailable("the connection ended in the middle of a message");
    }
    return DataLoss(fmt::format("this is not HTTP/1.1: {}", error.message()));
  }

  const Options options;
  std::unique_ptr<Collector<true>> as_request;
  std::unique_ptr<Collector<false>> as_response;
  bool too_long_header = false;
};

HttpParser::HttpParser(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
HttpParser::~HttpParser() = default;

Status HttpParser::Feed(std::string* input) {
  return impl_->With([&](auto& parser) -> Status {
    size_t used = 0;
    while (!parser.is_done() && used < input->size()) {
      const bool between_chunks =
          parser.is_header_done() && parser.chunked() && parser.chunk_left == 0;
      if (between_chunks && input->size() - used < kLastChunkBytes) break;
      error_code error;
      const size_t n =
          parser.put(boost::asio::const_buffer(input->data() + used, input->size() - used), error);
      used += n;
      if (error == beast::http::error::need_more) break;
      if (error) return impl_->ToStatus(error);
      if (n == 0) break;
    }
    input->erase(0, used);
    if (!parser.is_done() && input->size() > impl_->options.header_bytes_max + kUnparsedMax) {
      impl_->too_long_header = true;
      return ResourceExhausted("a chunk's header or a trailer does not end");
    }
    return OkStatus();
  });
}

Status HttpParser::FeedEnd() {
  return impl_->With([&](auto& parser) -> Status {
    if (parser.is_done()) return OkStatus();
    if (!parser.got_some()) return Unavailable("the connection ended without a message");
    error_code error;
    parser.put_eof(error);
    return error ? impl_->ToStatus(error) : OkStatus();
  });
}

bool HttpParser::header_done() const {
  return impl_->With([](const auto& parser) { return parser.is_header_done(); });
}
bool HttpParser::done() const {
  return impl_->With([](const auto& parser) { return parser.is_done(); });
}
bool HttpParser::keep_alive() const {
  return impl_->With([](const auto& parser) { return parser.keep_alive(); });
}
bool HttpParser::http11() const {
  return impl_->With([](const auto& parser) { return parser.http11; });
}
bool HttpParser::expects_continue() const {
  return impl_->as_request->request.headers.Get("expect").has_value();
}
bool HttpParser::too_long_header() const { return impl_->too_long_header; }
size_t HttpParser::body_bytes() const {
  return impl_->With([](const auto& parser) { return parser.body_bytes; });
}
HttpRequest& HttpParser::request() { return impl_->as_request->request; }
HttpResponse& HttpParser::response() { return impl_->as_response->response; }
std::string HttpParser::TakeBody() {
  return impl_->With([](auto& parser) { return std::exchange(parser.body, {}); });
}

}  // namespace forebay::http
