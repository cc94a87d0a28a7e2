// Plugin: a PJRT shared library, loaded once per process and never unloaded.
//
// A plugin starts threads and registers process-wide state in its constructors, so dlclose is not
// safe; two clients on one file (engine and learner) share one Plugin. Thread-safe.
#pragma once

#include <string>

#include "forebay/base/status.h"
#include "forebay/xla/pjrt/api.h"

namespace forebay::xla::pjrt {

struct Plugin {
  Api api;
  std::string path;
  // Distinguishes builds: API version, XLA and StableHLO versions, file size and modification time.
  // CPU plugins report only "cpu" as their platform version, so the file itself must be part of a
  // cache key.
  std::string fingerprint;
};

// Whether Forebay can drive the plugin with this function table: kInvalidArgument names what is
// wrong.
Status CheckTable(const PJRT_Api* table, const std::string& path);

// The plugin at `path`, loading and initialising it on first use.
// kNotFound: no such file. kInvalidArgument: not a PJRT plugin, or of another major API version.
Result<const Plugin*> LoadPlugin(const std::string& path);

}  // namespace forebay::xla::pjrt
