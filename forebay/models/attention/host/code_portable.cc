// Attention for any processor.
#include "forebay/models/attention/host/problem.h"
#include "forebay/models/attention/host/tiles.h"
#include "forebay/models/attention/host/vectors.h"

namespace forebay::models::attention::host {
namespace {

struct Cpu : Width<4, 6, 2> {};

constexpr Code kCode = MakeCode<Cpu>();

}  // namespace

const Code* PortableCode() { return &kCode; }

}  // namespace forebay::models::attention::host
