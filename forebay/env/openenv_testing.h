// A small OpenEnv server for tests, in Python with its standard library only.
#pragma once

#include <string>

#include "forebay/env/subprocess_testing.h"

namespace forebay::env {

// Writes the server into the folder; gives its path. `python3 PATH PORT_FILE SESSIONS_MAX`: it
// listens on 127.0.0.1 and writes its port into the file. One session: reset gives {"text": what
// reset was told, as JSON}; a step's "message" is answered by "saw ..." with reward 0.5, but: right
// ends it with reward 1; two gives an observation of two fields; invalid, raise, garbage, odd, cut,
// hang, flood and null do as they say; "long N" gives N letters; sessions tells how many there are.
std::string WriteOpenEnvServer(const TempFolder& folder);

}  // namespace forebay::env
