// The feed-forward layer of a few rows as one kernel: what lies between its products never leaves
// the caches, and threads are called once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "forebay/base/status.h"
#include "forebay/xla/ffi/few_rows.h"
#include "forebay/xla/ffi/few_rows_parts.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::ffi {
namespace {

bool IsShape(const HostArray& array, DType dtype, int64_t rows, int64_t columns) {
  return array.dtype == dtype && array.dims.size() == 2 && array.dims[0] == rows &&
         array.dims[1] == columns;
}

Status Run(const HostCall& call) {
  const std::span<const HostArray> in = call.operands();
  const HostArray& out = call.results()[0];
  if (in.size() != 4 || in[0].dims.size() != 2 || in[1].dims.size() != 2 ||
      in[0].dtype == DType::kS32) {
    return InvalidArgument("gated_rows: the operands are no rows and three weights");
  }
  const HostArray &x = in[0], &gate = in[1], &up = in[2], &down = in[3];
  const DType dtype = x.dtype;
  const int64_t rows = x.dims[0], depth = x.dims[1], width = gate.dims[0];
  if (!IsShape(gate, dtype, width, depth) || !IsShape(up, dtype, width, depth) ||
      down.dims.size() != 2 || !IsShape(down, dtype, down.dims[0], width) ||
      !IsShape(out, DType::kF32, rows, down.dims[0])) {
    return InvalidArgument("gated_rows: the weights do not fit each other");
  }
  const auto activation = static_cast<GateActivation>(static_cast<int>(call.number("activation")));
  const FewRowsCode& code = BestFewRows(dtype);
  const auto size = static_cast<int64_t>(ByteSize(dtype));
  const void* packed = Packed<0>(code, x.data, rows, depth);
  auto* hidden = static_cast<std::byte*>(Scratch<1>(rows * width * size));
  const int64_t hidden_bytes = code.packed_bytes(rows, width);
  void* hidden_packed = Scratch<2>(hidden_bytes);

  const int64_t inner = ChunkColumns(code, dtype, rows, depth);
  const int64_t outer = ChunkColumns(code, dtype, rows, width);
  SharedChunks inner_chunks((width + inner - 1) / inner, call.threads());
  SharedChunks outer_chunks((down.dims[0] + outer - 1) / outer, call.threads());
  const auto gate_columns = [&](int64_t chunk) {
    const int64_t begin = chunk * inner, end = std::min(width, begin + inner);
    const int64_t count = end - begin;
    auto* gates = static_cast<float*>(Scratch<3>(2 * rows * count * 4));
    float* ups = gates + rows * count;
    FewRows product{.x = x.data,
                    .packed = packed,
                    .weight = gate.as<std::byte>() + begin * depth * size,
                    .out = gates,
                    .rows = rows,
                    .columns = count,
                    .depth = depth};
    code.columns(product, 0, count);
    product.weight = up.as<std::byte>() + begin * depth * size;
    product.out = ups;
    code.columns(product, 0, count);
    for (int64_t row = 0; row < rows; ++row) {
      code.gate(activation, gates + row * count, ups + row * count, count,
                hidden + (row * width + begin) * size);
    }
    if (hidden_bytes > 0) code.pack(hidden, rows, width, begin, end, hidden_packed);
  };
  const auto down_columns = [&](int64_t chunk) {
    const int64_t begin = chunk * outer;
    code.columns({.x = hidden,
                  .packed = hidden_packed,
                  .weight = down.data,
                  .out = out.as<float>(),
                  .rows = rows,
                  .columns = down.dims[0],
                  .depth = width},
                 begin, std::min(down.dims[0], begin + outer));
  };
  call.ForEach(call.threads(), [&](int64_t run) {
    inner_chunks.Work(run, gate_columns);
    inner_chunks.Wait();
    outer_chunks.Work(run, down_columns);
  });
  return OkStatus();
}

}  // namespace

HostKernel GatedRowsKernel() { return MakeHostKernel<Run>("gated_rows"); }

}  // namespace forebay::xla::ffi
