// ForeignPage: whether a request comes from a web page that has no business with this machine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/http.h"

namespace forebay::http {

// A server on loopback that asks for no key trusts whoever is on this machine; a page in a browser
// here is not that. It can ask in two ways, and each is told from what a browser always sends:
// across origins (a foreign Origin), or under a name of its own that its name server lets point to
// 127.0.0.1 (a foreign Host, which makes the answers readable: "DNS rebinding"). The names that are
// not foreign: localhost and names under it, loopback addresses, and `allowed`. A request without
// these headers comes from no page.
//
// "" if it may be answered; else why not.
std::string ForeignPage(const HttpHeaders& headers, const std::vector<std::string>& allowed);

}  // namespace forebay::http
