#include "forebay/models/attention/host/kernels.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/attention/host/plan.h"
#include "forebay/models/attention/host/problem.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/shape.h"

namespace forebay::models::attention::host {
namespace {

using xla::DType;
using xla::HostArray;
using xla::HostCall;

enum Operand {
  kQuery,
  kKey,
  kValue,
  kQueryCos,
  kQuerySin,
  kKeyCos,
  kKeySin,
  kWindow,
  kQuerySegments,
  kPlaces,
  kKeySegments,
  kOut,
  kLogSum,
  kDOut
};

// Rows of a tile, queries times heads of a group: enough to make the loading of keys cheap, few
// enough for the second cache.
constexpr int64_t kTileRows = 192;
constexpr int64_t kQueriesMin = 16, kQueriesMax = 128;

std::span<const int32_t> Integers(const HostArray& array) {
  int64_t count = 1;
  for (const int64_t size : array.dims) count *= size;
  return {array.as<const int32_t>(), static_cast<size_t>(count)};
}

// Memory of threads, handed out and taken back.
class ScratchPool {
 public:
  explicit ScratchPool(int64_t floats) : bytes_(static_cast<size_t>(floats) * sizeof(float)) {}

  class Lease {
   public:
    explicit Lease(ScratchPool& pool) : pool_(pool), memory_(pool.Take()) {}
    ~Lease() { pool_.Give(std::move(memory_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    float* floats() const { return memory_.get(); }

   private:
    friend class ScratchPool;
    struct Free {
      void operator()(float* memory) const {
        ::operator delete(memory, std::align_val_t{kAlignment});
      }
    };
    using Memory = std::unique_ptr<float, Free>;
    ScratchPool& pool_;
    Memory memory_;
  };

 private:
  static constexpr size_t kAlignment = 64;
  using Memory = Lease::Memory;

  Memory Take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        Memory memory = std::move(free_.back());
        free_.pop_back();
        return memory;
      }
    }
    return Memory(static_cast<float*>(::operator new(bytes_, std::align_val_t{kAlignment})));
  }
  void Give(Memory memory) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(memory));
  }

  const size_t bytes_;
  std::mutex mutex_;
  std::vector<Memory> free_;
};

// A call's problem and plan.
struct Work {
  explicit Work(const HostCall& call) : code(BestCode()) {
    const std::span<const HostArray> in = call.operands();
    problem.kv_heads = static_cast<int64_t>(call.number("kv_heads"));
    problem.head_dim = static_cast<int64_t>(call.number("head_dim"));
    problem.group = in[kQuery].dims[1] / (problem.kv_heads * problem.head_dim);
    problem.query_cos = in[kQueryCos].as<const float>();
    problem.query_sin = in[kQuerySin].as<const float>();
    problem.key_cos = in[kKeyCos].as<const float>();
    problem.key_sin = in[kKeySin].as<const float>();
    problem.scale = static_cast<float>(call.number("scale"));
    problem.softcap = static_cast<float>(call.number("softcap"));
    problem.window = call.number("has_window") != 0 ? *in[kWindow].as<const int32_t>()
                                                    : std::numeric_limits<int32_t>::max();
    is_bf16 = in[kQuery].dtype == DType::kBF16;
    problem.query = in[kQuery].data;
    problem.key = in[kKey].data;
    problem.value = in[kValue].data;
    problem.queries_max = std::clamp(kTileRows / problem.group / 16 * 16, kQueriesMin, kQueriesMax);
    plan = MakePlan({.rows = in[kQuerySegments].dims[0],
                     .query_segments = Integers(in[kQuerySegments]),
                     .query_places = Integers(in[kPlaces]),
                     .key_segments = Integers(in[kKeySegments]),
                     .window = problem.window,
                     .queries_max = static_cast<int32_t>(problem.queries_max)});
    problem.query_blocks = plan.query_blocks.data();
    problem.key_blocks = plan.key_blocks.data();
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const Code& code;
  Problem problem = {};
  Plan plan;
  bool is_bf16 = false;
};

void ClearGaps(std::span<const Gap> gaps, const HostArray& array) {
  const auto row = static_cast<size_t>(array.dims[1] * xla::ByteSize(array.dtype));
  for (const Gap& gap : gaps) {
    std::memset(array.as<char>() + static_cast<size_t>(gap.token) * row, 0,
                static_cast<size_t>(gap.count) * row);
  }
}

Status Forward(const HostCall& call) {
  Work work(call);
  Problem& problem = work.problem;
  problem.out = call.results()[0].data;
  problem.log_sum = call.results()[1].as<float>();
  for (const HostArray& result : call.results()) ClearGaps(work.plan.query_gaps, result);
  ScratchPool pool(work.code.scratch_floats(problem));
  const auto forward = work.code.forward[work.is_bf16 ? 1 : 0];
  const auto tasks = static_cast<int64_t>(work.plan.query_blocks.size()) * problem.kv_heads;
  call.ForEach(tasks, [&](int64_t task) {
    // The last blocks of a segment see most keys: the longest tasks first.
    const int64_t reversed = tasks - 1 - task;
    const Block& block = problem.query_blocks[reversed / problem.kv_heads];
    if (block.last < block.first) return;
    const ScratchPool::Lease scratch(pool);
    forward(problem, block, reversed % problem.kv_heads, scratch.floats());
  });
  return OkStatus();
}

// A task is a block of keys and a head. It adds to d(query) of blocks of queries that others add
// to, too: in the order of the keys, so that the sums are the same bits whoever computes them. A
// task waits for tasks before it alone, and these follow each other through the blocks of queries a
// block apart, so that waits are short.
Status Backward(const HostCall& call) {
  Work work(call);
  Problem& problem = work.problem;
  problem.out = call.operands()[kOut].data;
  problem.log_sum = call.operands()[kLogSum].as<float>();
  problem.d_out = call.operands()[kDOut].data;
  problem.d_query = call.results()[0].as<float>();
  problem.d_key = call.results()[1].as<float>();
  problem.d_value = call.results()[2].as<float>();
  ClearGaps(work.plan.query_gaps, call.results()[0]);
  for (const HostArray& result : call.results().subspan(1)) {
    ClearGaps(work.plan.key_gaps, result);
  }
  ScratchPool pool(work.code.scratch_floats(problem));
  const Code& code = work.code;
  const size_t type = work.is_bf16 ? 1 : 0;
  const auto heads = static_cast<size_t>(problem.kv_heads);
  // How many blocks of keys each block of queries and head has behind it.
  std::vector<std::atomic<int32_t>> turns(work.plan.query_blocks.size() * heads);
  const auto tasks = static_cast<int64_t>(work.plan.key_blocks.size() * heads);
  call.ForEach(tasks, [&](int64_t task) {
    const auto key_block = static_cast<int32_t>(task / problem.kv_heads);
    const int64_t head = task % problem.kv_heads;
    const Block& keys = problem.key_blocks[key_block];
    const ScratchPool::Lease scratch(pool);
    code.backward_begin[type](problem, keys, head, scratch.floats());
    for (int32_t i = keys.first; i <= keys.last; ++i) {
      const Block& queries = problem.query_blocks[i];
      code.backward_pair[type](problem, keys, queries, head, scratch.floats());
      const int32_t own_turn = key_block - queries.first;
      std::atomic<int32_t>& turn =
          turns[static_cast<size_t>(i) * heads + static_cast<size_t>(head)];
      while (turn.load(std::memory_order_acquire) != own_turn) std::this_thread::yield();
      code.backward_add(problem, queries, head,
                        {.is_first = own_turn == 0, .is_last = key_block == queries.last},
                        scratch.floats());
      turn.store(own_turn + 1, std::memory_order_release);
    }
    code.backward_end(problem, keys, head, scratch.floats());
  });
  return OkStatus();
}

}  // namespace

const Code& BestCode() {
  for (const Code* code : {Avx512Code(), Avx2Code()}) {
    if (code != nullptr) return *code;
  }
  return *PortableCode();
}

xla::HostKernel ForwardKernel() {
  return xla::MakeHostKernel<Forward>("forebay_attention_forward");
}

xla::HostKernel BackwardKernel() {
  return xla::MakeHostKernel<Backward>("forebay_attention_backward");
}

}  // namespace forebay::models::attention::host
