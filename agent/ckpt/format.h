// The names of checkpoint formats: what Checkpoint.format holds, `dgxrun ckpt ls` prints and reshard.h
// decides by.
#ifndef DGXRUN_AGENT_CKPT_FORMAT_H_
#define DGXRUN_AGENT_CKPT_FORMAT_H_

#include <string_view>

namespace dgxrun::agent::ckpt {

inline constexpr std::string_view kTorch = "torch";               // torch.save: files or folders of them
inline constexpr std::string_view kTorchLegacy = "torch-legacy";  // torch.save before its zip format
inline constexpr std::string_view kSafetensors = "safetensors";   // single, or shards and an index
inline constexpr std::string_view kTrainer = "trainer";           // transformers: checkpoint-N
inline constexpr std::string_view kTrainerDeepSpeed = "trainer+deepspeed";
inline constexpr std::string_view kTrainerFsdp = "trainer+fsdp";
inline constexpr std::string_view kAccelerate = "accelerate";  // save_state
inline constexpr std::string_view kAccelerateDeepSpeed = "accelerate+deepspeed";
inline constexpr std::string_view kAccelerateFsdp = "accelerate+fsdp";
inline constexpr std::string_view kLightning = "lightning";  // one .ckpt file
inline constexpr std::string_view kLightningSharded = "lightning-sharded";
inline constexpr std::string_view kLightningDeepSpeed = "lightning+deepspeed";
inline constexpr std::string_view kDcp = "dcp";              // torch.distributed.checkpoint, torchtitan
inline constexpr std::string_view kDeepSpeed = "deepspeed";  // a tag of ZeRO 0 to 3
inline constexpr std::string_view kDeepSpeedUniversal = "deepspeed-universal";
inline constexpr std::string_view kMegatron = "megatron";  // legacy: mp_rank_*
inline constexpr std::string_view kMegatronDist = "megatron-torch_dist";
inline constexpr std::string_view kMegatronDcp = "megatron-torch_dcp";
inline constexpr std::string_view kNemo = "nemo";  // NeMo 2: weights/ and context/
// Empty format: no signature was found.

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_FORMAT_H_
