#include "forebay/learner/shape_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/learner/bucket_planner.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {
namespace {

using nlohmann::json;

constexpr size_t kLogBytesMax = size_t{16} << 20;
constexpr int64_t kSideMax = int64_t{1} << 24;

bool Usable(const std::vector<BucketShape>& shapes) {
  const auto side = [](int64_t n) { return n >= 1 && n <= kSideMax; };
  return !shapes.empty() && static_cast<int64_t>(shapes.size()) <= kShapesMax &&
         std::ranges::all_of(shapes,
                             [&](BucketShape s) { return side(s.rows) && side(s.length); }) &&
         std::ranges::adjacent_find(shapes, std::ranges::greater_equal{}, &BucketShape::length) ==
             shapes.end();
}

}  // namespace

Result<ShapeHistory> ReadShapeLog(const std::string& path) {
  const auto text = ReadFile(path, kLogBytesMax);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return ShapeHistory{};
  if (!text.ok()) return text.status();
  ShapeHistory history;
  try {
    for (const json& entry : json::parse(*text)) {
      std::vector<BucketShape> shapes;
      for (const json& shape : entry.at("shapes")) {
        shapes.push_back({shape.at(0).get<int64_t>(), shape.at(1).get<int64_t>()});
      }
      const auto step = entry.at("step").get<int64_t>();
      if (step < 0 || !Usable(shapes)) {
        return DataLoss(
            fmt::format("{}: the shapes of step {} are none that a learner uses (1 to "
                        "{} of ascending length)",
                        path, step, kShapesMax));
      }
      history[step] = std::move(shapes);
    }
  } catch (const std::exception& e) {
    return DataLoss(fmt::format("{} is damaged: {}", path, e.what()));
  }
  return history;
}

Status WriteShapeLog(const std::string& path, const ShapeHistory& history) {
  json out = json::array();
  for (const auto& [step, shapes] : history) {
    json list = json::array();
    for (const BucketShape shape : shapes) list.push_back({shape.rows, shape.length});
    out.push_back({{"step", step}, {"shapes", std::move(list)}});
  }
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty()) {
    FB_RETURN_IF_ERROR(MakeFolders(folder.string()));
  }
  return WriteFileAtomic(path, out.dump() + "\n");
}

const std::vector<BucketShape>* ShapesAt(const ShapeHistory& history, int64_t step) {
  const auto after = history.upper_bound(step);
  return after == history.begin() ? nullptr : &std::prev(after)->second;
}

}  // namespace forebay::learner
