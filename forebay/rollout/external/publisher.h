// Publisher: gives one server of ours (`forebay serve --take-weights`) new weights, over HTTP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/external/server.h"
#include "forebay/weights/manifest.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout::external {

// A snapshot, and what servers are told of it. Immutable.
struct Offering {
  std::shared_ptr<const weights::Snapshot> snapshot;
  weights::Manifest manifest;
  std::string manifest_text, digest;
};
// Reads all of it twice.
std::shared_ptr<const Offering> MakeOffering(std::shared_ptr<const weights::Snapshot> snapshot);

// On the loop, as its server; nothing is drained: requests go on while weights come and are taken.
// Errors as the server's; kFailedPrecondition: another publisher has taken over.
class Publisher {
 public:
  struct Identity {
    std::string name;
    int64_t started_us = 0;
  };
  Publisher(Loop& loop, Server& server, Identity identity)
      : loop_(loop), server_(server), identity_(std::move(identity)) {}

  struct Held {
    int64_t policy_version = -1;
    std::string digest;
  };
  // Makes this the server's publisher, and its requests those of this publisher.
  Task<Result<Held>> Enter(TimePoint deadline);
  // A sign of life, and whether the server still knows this publisher.
  Task<Status> Check(TimePoint deadline);
  // Returns once the server samples with it. `committing` is set when it may from now on.
  Task<Status> Give(std::shared_ptr<const Offering> offering, int64_t* committing,
                    TimePoint deadline);

  int64_t bytes_offered() const { return bytes_offered_; }  // by all that Give gave
  int64_t bytes_sent() const { return bytes_sent_; }        // of them

 private:
  struct Plan {
    std::string sync;
    std::vector<const weights::HostTensor*> tensors;  // to send, one behind the other
    std::vector<int64_t> offsets;                     // of each
    int64_t bytes = 0, chunk_bytes = 0, chunks = 0;
    int64_t next = 0;  // chunk
    int lanes = 0;     // that still send
    Status status;     // of the first that failed
    std::optional<OneShot<bool>> done;
  };
  Task<Result<Plan>> Begin(const Offering& offering, TimePoint deadline);
  Task<void> Lane(Plan* plan, TimePoint deadline);
  static std::string Chunk(const Plan& plan, int64_t chunk);

  Loop& loop_;
  Server& server_;
  const Identity identity_;
  int64_t bytes_offered_ = 0, bytes_sent_ = 0;
};

}  // namespace forebay::rollout::external
