// A socket, certificates and small records by hand, for the tests of the service.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/shared_area.h"

namespace forebay::buffer {

struct RawFrame {
  FrameHeader header;
  std::string payload;
};

std::string FrameBytes(FrameHeader header, std::string_view payload);
std::string HelloBytes(const Hello& hello);

// A client that says whatever a test wants.
class RawClient {
 public:
  explicit RawClient(const std::string& address);
  // False when the peer has gone.
  bool Send(std::string_view bytes);
  // The next frame; nullopt at the end of the connection or after `wait`.
  std::optional<RawFrame> Next(Duration wait = std::chrono::seconds(60));
  // True when the peer closes within `wait`; what it still says is read.
  bool Closed(Duration wait = std::chrono::seconds(60));
  // Hello and welcome.
  bool Greet(const std::string& producer = "", const std::string& token = "", uint16_t version = 1);
  // Asks for shared memory; null: it gets none.
  std::unique_ptr<SharedArea> Share(const AreaSizes& sizes);
  const Welcome& welcome() const { return welcome_; }
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
  std::string in_;
  Welcome welcome_;
};

// Calls `condition` until it is true; false after 30 seconds.
bool Eventually(const std::function<bool()>& condition);

// A folder of its own, removed at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Writes folder/NAME.crt and folder/NAME.key: self-signed, for `host` (a name, or 127.0.0.1).
void MakeCertificate(const std::string& folder, const std::string& name, const std::string& host);

// An encoded trajectory of about `bytes` bytes.
std::string Record(int64_t trajectory_id, int64_t group_id, int32_t member = 0,
                   int64_t bytes = 200);

}  // namespace forebay::buffer
