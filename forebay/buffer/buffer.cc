#include "forebay/buffer/buffer.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/file.h"

namespace forebay::buffer {

Result<std::unique_ptr<Buffer>> Buffer::Open(const BufferOptions& options, int64_t committed_batch,
                                             BufferListener listener, Recovery* recovery) {
  std::unique_ptr<FileSystem> files = MakeFileSystem();
  FB_ASSIGN_OR_RETURN(std::unique_ptr<Core> core, Core::Open(files.get(), options, committed_batch,
                                                             std::move(listener), recovery));
  core->Own(std::move(files));
  return std::unique_ptr<Buffer>(std::move(core));
}

}  // namespace forebay::buffer
