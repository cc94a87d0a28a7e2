// Producers: who may append under which name, over restarts.
//
// A registration gives the name a new number (the upper bits of its trajectory ids), the next epoch
// and a secret. Whoever shows the secret goes on as that registration; once the name is registered
// again, nobody can: that is the fence. The last 10,000 names are known; an older one is forgotten:
// its holder cannot go on, and its epochs begin at 1 again. Numbers tell which registration of a
// name is the later one, epochs do not. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/service/messages.h"

namespace forebay::buffer {

struct Producer {
  int64_t number = 0;  // 1, 2, ...: of this registration alone, never given again
  int64_t epoch = 0;   // 1, 2, ...: of this name, since it was last forgotten
  SessionSecret secret{};
};

inline constexpr int kProducerShift = 40;
inline constexpr int64_t kProducersMax = (int64_t{1} << (63 - kProducerShift)) - 1;

class Producers {
 public:
  // Reads folder/producers.json if there is one ("": memory only), and locks it: two servers would
  // give the same ids out. Ids below `next_trajectory_id` are in the buffers and not given out,
  // whatever the file says. kDataLoss: it does not parse; kFailedPrecondition: another process has
  // it.
  static Result<std::unique_ptr<Producers>> Open(const std::string& folder,
                                                 int64_t next_trajectory_id = 1);

  // Durable before it returns. kResourceExhausted after kProducersMax registrations.
  Result<Producer> Register(const std::string& name);
  // kFailedPrecondition: the name was registered again, or the secret is not of it.
  Result<Producer> Resume(const std::string& name, const SessionSecret& secret) const;

 private:
  Status Save() FB_REQUIRES(mutex_);

  Fd lock_;  // closing it gives the lock back
  std::string path_;
  mutable Mutex mutex_;
  int64_t next_number_ FB_GUARDED_BY(mutex_) = 1;
  std::map<std::string, Producer> names_ FB_GUARDED_BY(mutex_);
};

// Equal, in a time that does not tell where they differ.
bool SameSecret(std::string_view a, std::string_view b);

}  // namespace forebay::buffer
