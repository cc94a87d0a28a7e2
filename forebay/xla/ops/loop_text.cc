#include "forebay/xla/ops/loop_text.h"

#include <fmt/core.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {

std::string JoinNames(std::span<const std::string> names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += ", ";
    out += names[i];
  }
  return out;
}

std::vector<std::string> EmitWhile(Emitter& out, std::span<const std::string> initial,
                                   std::span<const Shape> shapes,
                                   const std::function<std::string(LoopNames)>& condition,
                                   const std::function<std::vector<std::string>(LoopNames)>& body) {
  std::vector<std::string> state;
  std::string header;
  for (size_t i = 0; i < initial.size(); ++i) {
    state.push_back(out.FreshName());
    header += fmt::format("{}{} = {}", i > 0 ? ", " : "", state.back(), initial[i]);
  }
  const std::string types = TypesText(shapes);
  out.BeginNested(/*isolated=*/true);
  const std::string test = condition(state);
  out.Line(fmt::format("stablehlo.return {} : tensor<i1>", test));
  const std::string condition_text = out.EndNested();
  out.BeginNested(/*isolated=*/true);
  const std::vector<std::string> next = body(state);
  out.Line(fmt::format("stablehlo.return {} : {}", JoinNames(next), types));
  const std::string body_text = out.EndNested();
  return out.DefineMany(fmt::format("stablehlo.while({}) : {} cond {{\n{}}} do {{\n{}}}", header,
                                    types, condition_text, body_text),
                        static_cast<int>(initial.size()));
}

}  // namespace forebay::xla
