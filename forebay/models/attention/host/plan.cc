#include "forebay/models/attention/host/plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "forebay/models/attention/host/problem.h"

namespace forebay::models::attention::host {
namespace {

// Neighbours of one segment, whose places are neighbours too.
struct Run {
  int32_t segment, token, place, count;
};

// The runs of a row in the order of segment and place; padding becomes gaps.
template <typename PlaceFn>
std::vector<Run> FindRuns(std::span<const int32_t> segments, int32_t first_token,
                          const PlaceFn& place_of, std::vector<Gap>* gaps) {
  std::vector<Run> runs;
  const auto length = static_cast<int32_t>(segments.size());
  for (int32_t begin = 0, end; begin < length; begin = end) {
    const int32_t segment = segments[static_cast<size_t>(begin)];
    end = begin + 1;
    while (end < length && segments[static_cast<size_t>(end)] == segment &&
           place_of(end) == place_of(end - 1) + 1) {
      ++end;
    }
    if (segment == 0) {
      gaps->push_back({first_token + begin, end - begin});
    } else {
      runs.push_back({segment, first_token + begin, place_of(begin), end - begin});
    }
  }
  std::ranges::sort(runs, {}, [](const Run& run) { return std::tuple(run.segment, run.place); });
  return runs;
}

void Cut(std::span<const Run> runs, int32_t size, std::vector<Block>* blocks) {
  for (const Run& run : runs) {
    for (int32_t at = 0; at < run.count; at += size) {
      blocks->push_back({.token = run.token + at,
                         .place = run.place + at,
                         .count = std::min(size, run.count - at),
                         .first = 0,
                         .last = -1});
    }
  }
}

// Whether some query of the block sees some key of the other.
bool EndsBefore(const Block& queries, const Block& keys) {
  return queries.place + queries.count <= keys.place;
}
bool WindowBeginsAfter(const Block& queries, const Block& keys, int32_t window) {
  return queries.place >= window && keys.place + keys.count <= queries.place - window + 1;
}

class Planner {
 public:
  explicit Planner(const PlanInput& input) : input_(input) {}

  Plan Make() {
    const auto rows = static_cast<size_t>(input_.rows);
    const size_t queries = input_.query_places.size();
    const size_t keys = input_.key_segments.size() / rows;
    for (size_t b = 0; b < rows; ++b) {
      const std::vector<Run> query_runs = FindRuns(
          input_.query_segments.subspan(b * queries, queries), static_cast<int32_t>(b * queries),
          [&](int32_t i) { return input_.query_places[static_cast<size_t>(i)]; },
          &plan_.query_gaps);
      const std::vector<Run> key_runs = FindRuns(
          input_.key_segments.subspan(b * keys, keys), static_cast<int32_t>(b * keys),
          [](int32_t i) { return i; }, &plan_.key_gaps);
      Pair(query_runs, key_runs);
    }
    for (const Block& block : plan_.query_blocks) {
      if (block.last < block.first) plan_.query_gaps.push_back({block.token, block.count});
    }
    return std::move(plan_);
  }

 private:
  // Segment by segment.
  void Pair(std::span<const Run> queries, std::span<const Run> keys) {
    const auto take = [](std::span<const Run>* runs, int32_t segment) {
      const auto end =
          std::ranges::find_if(*runs, [&](const Run& run) { return run.segment != segment; });
      const auto count = static_cast<size_t>(end - runs->begin());
      const std::span<const Run> taken = runs->first(count);
      *runs = runs->subspan(count);
      return taken;
    };
    while (!queries.empty() || !keys.empty()) {
      const int32_t segment = queries.empty() ? keys[0].segment
                              : keys.empty()  ? queries[0].segment
                                              : std::min(queries[0].segment, keys[0].segment);
      const size_t first_query = plan_.query_blocks.size(), first_key = plan_.key_blocks.size();
      Cut(take(&queries, segment), input_.queries_max, &plan_.query_blocks);
      Cut(take(&keys, segment), kKeysMax, &plan_.key_blocks);
      Meet(first_query, first_key);
    }
  }

  // Both bounds of both sides rise with the place.
  void Meet(size_t first_query, size_t first_key) {
    const std::span<Block> queries = std::span(plan_.query_blocks).subspan(first_query);
    const std::span<Block> keys = std::span(plan_.key_blocks).subspan(first_key);
    size_t low = 0, high = 0;
    for (Block& q : queries) {
      while (low < keys.size() && WindowBeginsAfter(q, keys[low], input_.window)) ++low;
      while (high < keys.size() && !EndsBefore(q, keys[high])) ++high;
      q.first = static_cast<int32_t>(first_key + low);
      q.last = static_cast<int32_t>(first_key + high) - 1;
    }
    low = high = 0;
    for (Block& k : keys) {
      while (low < queries.size() && EndsBefore(queries[low], k)) ++low;
      while (high < queries.size() && !WindowBeginsAfter(queries[high], k, input_.window)) ++high;
      k.first = static_cast<int32_t>(first_query + low);
      k.last = static_cast<int32_t>(first_query + high) - 1;
    }
  }

  const PlanInput& input_;
  Plan plan_;
};

}  // namespace

Plan MakePlan(const PlanInput& input) { return Planner(input).Make(); }

}  // namespace forebay::models::attention::host
