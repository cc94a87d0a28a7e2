// forebay buffer export: trajectories as JSON lines or Parquet.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/buffer_command.h"
#include "apps/buffer_command_rows.h"
#include "apps/interrupt.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {
namespace {

using buffer::Fate;
using buffer::LogReader;
using buffer::LogRecord;

// A file that is written aside and takes its name when it is complete. Removed unless it did.
class AsideFile {
 public:
  static Result<std::unique_ptr<AsideFile>> Create(const std::string& path, bool overwrite) {
    struct stat info{};
    const bool there = ::lstat(path.c_str(), &info) == 0;
    // Its name would go to a file: /dev/null must not.
    if (there && !S_ISREG(info.st_mode)) {
      return InvalidArgument(fmt::format(
          "'{}' is no regular file: give another --output, or none for the standard output", path));
    }
    if (there && !overwrite) {
      return AlreadyExists(
          fmt::format("'{}' is there: give another --output, or --overwrite", path));
    }
    std::unique_ptr<AsideFile> file(new AsideFile(path));
    Fd fd(::open(file->aside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd.valid()) return ErrnoStatus("cannot create '" + file->aside_ + "'", errno);
    file->fd_ = std::move(fd);
    return file;
  }
  ~AsideFile() {
    if (fd_.valid()) ::unlink(aside_.c_str());
  }
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;

  int fd() const { return fd_.get(); }
  Status Keep() {
    if (::fsync(fd_.get()) != 0) return ErrnoStatus("cannot sync '" + aside_ + "'", errno);
    if (::rename(aside_.c_str(), path_.c_str()) != 0) {
      return ErrnoStatus("cannot rename '" + aside_ + "' to '" + path_ + "'", errno);
    }
    fd_.Close();
    return SyncFolder(std::filesystem::path(path_).parent_path().string());
  }

 private:
  explicit AsideFile(const std::string& path) : path_(path), aside_(path + ".tmp") {}
  const std::string path_, aside_;
  Fd fd_;
};

class Selection {
 public:
  static Result<Selection> Make(const BufferExportCommand& command) {
    Selection selection(command);
    for (const std::string& name : command.outcomes) {
      const std::optional<Outcome> outcome = ParseOutcome(name);
      if (!outcome) {
        std::vector<std::string> known;
        known.reserve(kOutcomes);
        for (int i = 0; i < kOutcomes; ++i) {
          known.emplace_back(OutcomeName(static_cast<Outcome>(i)));
        }
        return InvalidArgument(fmt::format("--outcome {}: there is no such outcome; there are {}",
                                           name, fmt::join(known, ", ")));
      }
      selection.outcomes_.push_back(*outcome);
    }
    if (command.to_batch > 0 && command.to_batch < command.from_batch) {
      return InvalidArgument(fmt::format("--from-batch {} comes after --to-batch {}",
                                         command.from_batch, command.to_batch));
    }
    return selection;
  }

  bool Wants(const Fate& fate) const {
    const bool pending = fate.kind == Fate::Kind::kPending || fate.kind == Fate::Kind::kLeased;
    const bool trained = fate.kind == Fate::Kind::kTrained;
    if ((pending_ || trained_) && !((pending_ && pending) || (trained_ && trained))) return false;
    if ((from_ > 0 || to_ > 0) && fate.batch == 0) return false;
    return fate.batch >= from_ && (to_ == 0 || fate.batch <= to_);
  }
  bool Wants(Outcome outcome) const {
    return outcomes_.empty() || std::ranges::count(outcomes_, outcome) > 0;
  }

 private:
  explicit Selection(const BufferExportCommand& command)
      : pending_(command.pending),
        trained_(command.trained),
        from_(command.from_batch),
        to_(command.to_batch) {}
  const bool pending_, trained_;
  const int64_t from_, to_;
  std::vector<Outcome> outcomes_;
};

struct ExportCounts {
  int64_t written = 0, unreadable = 0;
};

Status WriteRows(LogReader& reader, const Selection& selection, const std::atomic<bool>& stop,
                 RowWriter& rows, ExportCounts& counts) {
  FB_RETURN_IF_ERROR(reader.LoadFates());
  buffer::LogFilter filter;
  filter.events = {};
  filter.events[static_cast<size_t>(buffer::LogEvent::kTrajectory)] = true;
  Status failed;
  FB_RETURN_IF_ERROR(reader.ForEach(filter, [&](const LogRecord& record) {
    if (stop) failed = Cancelled("interrupted: nothing was kept of the export");
    if (!failed.ok()) return false;
    if (!reader.IsNewest(record)) return true;
    const Fate fate = reader.FateOf(record.id.trajectory_id);
    if (!selection.Wants(fate)) return true;
    const Result<Trajectory> trajectory = Decode(record.encoded);
    if (!trajectory.ok()) {
      ++counts.unreadable;
      return true;
    }
    if (!selection.Wants(trajectory->outcome)) return true;
    failed = rows.Add(*trajectory, fate);
    counts.written += failed.ok() ? 1 : 0;
    return failed.ok();
  }));
  FB_RETURN_IF_ERROR(failed);
  return rows.Finish();
}

}  // namespace

Status BufferExport(const BufferExportCommand& command) {
  const bool parquet = command.format == "parquet";
  if (!parquet && command.format != "jsonl") {
    return InvalidArgument(fmt::format("--format {}: there are jsonl and parquet", command.format));
  }
  const bool to_stdout = command.output.empty() || command.output == "-";
  if (parquet && to_stdout) {
    return InvalidArgument("a Parquet file needs --output FILE");
  }
  FB_ASSIGN_OR_RETURN(const Selection selection, Selection::Make(command));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<LogReader> reader, LogReader::Open(command.folder));
  std::unique_ptr<AsideFile> file;
  if (!to_stdout) {
    FB_ASSIGN_OR_RETURN(file, AsideFile::Create(command.output, command.overwrite));
  }
  const int fd = to_stdout ? STDOUT_FILENO : file->fd();
  std::unique_ptr<RowWriter> rows;
  if (parquet) {
    FB_ASSIGN_OR_RETURN(rows, MakeParquetRows(fd));
  } else {
    rows = MakeJsonRows(fd);
  }
  ExportCounts counts;
  {
    std::atomic<bool> stop = false;
    std::optional<Interrupt> interrupt;
    if (!to_stdout) interrupt.emplace([&stop] { stop = true; });
    FB_RETURN_IF_ERROR(WriteRows(*reader, selection, stop, *rows, counts));
  }
  if (file) FB_RETURN_IF_ERROR(file->Keep());
  for (const std::string& note : reader->TakeNotes()) {
    std::fprintf(stderr, "note: %s\n", note.c_str());
  }
  if (counts.unreadable > 0) {
    std::fprintf(stderr, "note: %lld trajectories cannot be read and were left out\n",
                 static_cast<long long>(counts.unreadable));
  }
  if (!command.quiet && file) {
    std::printf("wrote %s: %lld trajectories\n", command.output.c_str(),
                static_cast<long long>(counts.written));
  }
  return OkStatus();
}

}  // namespace forebay::apps
