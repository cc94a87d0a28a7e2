// Api: the one way to call a PJRT plugin. Nothing outside xla/pjrt/ includes this header.
//
// The C API grows at its end: a plugin built from an older or newer header has a shorter or longer
// function table, and argument structs of another size. Call handles all of it in one place: it
// fills struct_size, refuses functions that this plugin's table does not reach or leaves null
// (kUnimplemented, named), and turns a PJRT_Error into a Status that starts with the function's
// name. Thread-safe.
#pragma once

#include <pjrt_c_api.h>  // IWYU pragma: export

#include <cstddef>
#include <string_view>

#include "forebay/base/status.h"

namespace forebay::xla::pjrt {

class Api {
 public:
  // `table` must live as long as this object and its copies (a loaded plugin is never unloaded).
  explicit Api(const PJRT_Api* table) : table_(table) {}

  const PJRT_Api& table() const { return *table_; }

  // True if the plugin has this function.
  template <class Function>
  bool Has(Function* PJRT_Api::* member) const {
    const auto* field = &(table_->*member);
    const size_t end = static_cast<size_t>(reinterpret_cast<const char*>(field) -
                                           reinterpret_cast<const char*>(table_)) +
                       sizeof(*field);
    return end <= table_->struct_size && *field != nullptr;
  }

  // Use through FB_PJRT, which supplies the name and the size.
  template <class Args>
  Status Call(PJRT_Error* (*PJRT_Api::*member)(Args*), std::string_view name, size_t struct_size,
              Args& args) const {
    if (!Has(member)) return Missing(name);
    args.struct_size = struct_size;
    return ToStatus((table_->*member)(&args), name);
  }

  // Blocks until the event fires, frees it and returns its error. A null event is OK.
  Status AwaitAndDestroy(PJRT_Event* event, std::string_view what) const;
  void Destroy(PJRT_Event* event) const;

  // Frees `error` (null is OK).
  Status ToStatus(PJRT_Error* error, std::string_view name) const;

 private:
  Status Missing(std::string_view name) const;

  const PJRT_Api* table_;
};

}  // namespace forebay::xla::pjrt

// Calls api.fn(&args): FB_PJRT(api, PJRT_Client_Create, args) is a Status.
#define FB_PJRT(api, fn, args) (api).Call(&PJRT_Api::fn, #fn, fn##_Args_STRUCT_SIZE, args)
