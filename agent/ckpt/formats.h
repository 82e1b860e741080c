// The rules of each format: what must be there, in what order it was written, what it says about itself. Each
// notes what it finds in the review. A folder is given relative to the checkpoint, "" is the checkpoint
// itself. Source of the rules: the frameworks' code (docs/checkpoints.md says which versions were tried).
#ifndef DGXRUN_AGENT_CKPT_FORMATS_H_
#define DGXRUN_AGENT_CKPT_FORMATS_H_

#include <string>
#include <string_view>

#include "agent/ckpt/review.h"

namespace dgxrun::agent::ckpt {

// torch.distributed.checkpoint: __R_I.distcp and .metadata, which names them and is renamed into place last.
struct DcpAnswer {
  bool metadata = false;  // it was there and could be read
  bool megatron = false;  // Megatron's keys lie in it
};
DcpAnswer JudgeDcp(Review& review, std::string_view folder);
bool LooksLikeDcp(const Tree& tree, std::string_view folder);

// The weights that transformers, PEFT and accelerate save: single files, or shards and an index, which is
// written after them.
enum class Weights {
  kNone,
  kSome,  // a file or an index was found and judged
};
Weights JudgeWeights(Review& review, std::string_view folder);
bool LooksLikeWeights(const Tree& tree, std::string_view folder);
// Whether a name is of one of those files: what training leaves beside the checkpoints at its end.
bool IsWeightsName(std::string_view name);

void JudgeTrainer(Review& review);     // transformers' checkpoint-N
void JudgeAccelerate(Review& review);  // accelerate's save_state
void JudgeLightningFile(Review& review);
void JudgeLightningFolder(Review& review);
void JudgeMegatron(Review& review, std::string_view folder);  // torch_dist, torch_dcp, legacy
void JudgeNemo(Review& review);
// Where Megatron left digests of its files: all that are named are there; `deep` reads them all.
void CheckIntegrity(Review& review, std::string_view folder);
void JudgeTorchFolder(Review& review);  // loose torch.save and safetensors files
void JudgeTorchFile(Review& review);

// DeepSpeed's files of one tag, right in `folder`.
void JudgeDeepSpeed(Review& review, std::string_view folder);
bool LooksLikeDeepSpeed(const Tree& tree, std::string_view folder);
// The tag that `latest` in a folder names, or the only folder with DeepSpeed files in it; empty: none.
std::string DeepSpeedTagIn(Review& review, std::string_view folder);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_FORMATS_H_
