// Apart from what renders, so that who only checks names needs no template engine.
#include <algorithm>
#include <array>
#include <string_view>

#include "forebay/tokenizer/tokenizer.h"

namespace forebay::tokenizer {
namespace {

// What Render gives to a template, and functions: those of ffi/src/template.rs and Jinja's own.
constexpr std::array<std::string_view, 12> kReserved = {"messages",
                                                        "tools",
                                                        "documents",
                                                        "add_generation_prompt",
                                                        "bos_token",
                                                        "eos_token",
                                                        "raise_exception",
                                                        "strftime_now",
                                                        "namespace",
                                                        "range",
                                                        "dict",
                                                        "debug"};

}  // namespace

bool ChatTemplate::IsReserved(std::string_view name) {
  // Names that begin so are between Render and the template's functions.
  return name.starts_with("__") || std::ranges::find(kReserved, name) != kReserved.end();
}

}  // namespace forebay::tokenizer
