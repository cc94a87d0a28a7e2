#include "forebay/xla/pjrt/client_state.h"

#include <mutex>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/pjrt/api.h"

namespace forebay::xla::pjrt {

ClientState::~ClientState() {
  for (PJRT_Event* event : last_launch_) {
    const Status ended = api.AwaitAndDestroy(event, "the last program on the mesh");
    static_cast<void>(ended);  // its results have said what went wrong
  }
  PJRT_Client_Destroy_Args args = {};
  args.client = client;
  const Status status = FB_PJRT(api, PJRT_Client_Destroy, args);
  FB_CHECK(status.ok(), status.ToString());
}

Status ClientState::LaunchOnMesh(PJRT_LoadedExecutable_Execute_Args& args) {
  const std::lock_guard lock(launch_mutex_);
  if (!is_cpu) return FB_PJRT(api, PJRT_LoadedExecutable_Execute, args);
  for (PJRT_Event* event : std::exchange(last_launch_, {})) {
    const Status ended = api.AwaitAndDestroy(event, "the program before");
    static_cast<void>(ended);  // its own results say what went wrong
  }
  std::vector<PJRT_Event*> events(args.num_devices, nullptr);
  args.device_complete_events = events.data();
  const Status status = FB_PJRT(api, PJRT_LoadedExecutable_Execute, args);
  if (status.ok()) last_launch_ = std::move(events);
  return status;
}

}  // namespace forebay::xla::pjrt
