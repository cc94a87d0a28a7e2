// Checkpoints: what a run needs to go on after any crash, in one folder that is there whole or not
// at all. With LoRA the folder needs the base model's file beside it.
//
//   step_000123/model.safetensors      weights, Hugging Face names; not with LoRA
//   step_000123/optimizer.safetensors  its state: "m.", "v.", ... before the same names
//   step_000123/adapters.safetensors   only with LoRA
//   step_000123/manifest.json          everything else, and the digests of the files' tensors
//   base_DIGEST.safetensors            only with LoRA: the base model, which never changes, written
//                                      once for all steps
//   latest                             the name of the newest folder
//
// The manifest's committed_batch says which batches are in the weights: after a crash the weights
// have been trained on exactly those, so a lease becomes final by the rename that publishes the
// folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/schedule.h"
#include "forebay/learner/train_step.h"
#include "forebay/weights/snapshot.h"

namespace forebay::learner {

// Where a learner stands between two steps.
struct LearnerState {
  TrainState train;
  int64_t step = 0;  // optimizer steps done, no-ops included
  int64_t policy_version = 0;
  int64_t committed_batch = 0;  // the last one whose effect is in the weights; 0: none
};

struct CheckpointData {
  LearnerState state;
  ScheduleOptions schedule;
  LoraOptions lora;  // of state.train.adapters
  int64_t seed = 0;
  std::string config_hash;  // of the run's configuration, for the reader; "" if unknown
  std::string app_state =
      "{}";  // JSON of the application (counters of other rooms), returned as it was
};

// Writes folder/step_NNNNNN aside, syncs and renames it, points `latest` at it, then deletes all
// but the newest `keep` (>= 1) folders. Blocks. Replaces a folder of the same step. Errors:
// kResourceExhausted (disk full) and others of the file system; what was there before stays valid.
// `base_digest` (may be null): with LoRA, what the last call for the same base left there, so that
// gigabytes are not digested again; "" at first: a base's file that is there is then read back, and
// written anew if it is not whole.
Status WriteCheckpoint(const std::string& folder, const CheckpointData& data, int64_t keep,
                       std::string* base_digest = nullptr);

struct LoadedCheckpoint {
  CheckpointData data;
  std::string path;  // of the step_NNNNNN folder
  // One sentence for each newer checkpoint, or base model's file, that was not usable, and why.
  std::vector<std::string> notes;
};

// A checkpoint that is there, by its manifest alone: its tensors were not read.
struct CheckpointInfo {
  int64_t step = 0;
  int64_t committed_batch = 0;
  std::string path;
};

// All of a folder, oldest first. A folder without a readable manifest is left out. Empty also when
// there is no such folder.
std::vector<CheckpointInfo> ListCheckpoints(const std::string& folder);

// The last batch that no replay needs any more: that of the oldest checkpoint, which a replay
// starts from. 0 while there are fewer than `keep`: the weights that the run began with still count
// as one.
int64_t ReleasableBatch(const std::vector<CheckpointInfo>& checkpoints, int64_t keep);

// Reads one step_NNNNNN folder and checks all digests. `base` (may be null) takes the place of the
// file of a LoRA base that is missing or not whole, if it is the same model, with a note.
// kNotFound, kDataLoss (which file, what was wrong).
Result<LoadedCheckpoint> ReadCheckpoint(const std::string& path,
                                        const weights::TensorMap* base = nullptr);

// kFailedPrecondition when the adapters of a checkpoint belong to another base than `model`, which
// a run was told to go on with. OK without adapters.
Status CheckBase(const TrainState& saved, const weights::TensorMap& model);

// The checkpoint that `latest` names, or, where that is corrupt or missing, the newest one that is
// whole (with a note). kNotFound when the folder holds none; kDataLoss, listing each one's fault,
// when none is whole. `base`: ReadCheckpoint's.
Result<LoadedCheckpoint> LoadLatestCheckpoint(const std::string& folder,
                                              const weights::TensorMap* base = nullptr);

}  // namespace forebay::learner
