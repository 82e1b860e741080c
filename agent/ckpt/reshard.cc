#include "agent/ckpt/reshard.h"

#include "agent/ckpt/format.h"

namespace dgxrun::agent::ckpt {
namespace {

struct Row {
  std::string_view format;
  Reshard answer;
  const char* reason;
};

constexpr char kZeroRefuses[] =
    "DeepSpeed raises ZeRORuntimeException when a ZeRO checkpoint is loaded by another number of data "
    "parallel "
    "ranks; convert it to a universal checkpoint first (ds_to_universal)";
constexpr char kReplicated[] =
    "every data parallel rank loads the same files; random states of new ranks start anew";
constexpr char kReshards[] = "torch.distributed.checkpoint lays the shards out anew when it loads";

constexpr Row kRows[] = {
    {kTorch, Reshard::kNotKnown, "what a script keeps in its own torch.save files is not known"},
    {kTorchLegacy, Reshard::kNotKnown, "what a script keeps in its own torch.save files is not known"},
    {kSafetensors, Reshard::kYes, "safetensors hold whole tensors, which every rank loads"},
    {kTrainer, Reshard::kYes, kReplicated},
    {kTrainerFsdp, Reshard::kYes, kReshards},
    {kTrainerDeepSpeed, Reshard::kNo, kZeroRefuses},
    {kAccelerate, Reshard::kYes, kReplicated},
    {kAccelerateFsdp, Reshard::kYes, kReshards},
    {kAccelerateDeepSpeed, Reshard::kNo, kZeroRefuses},
    {kLightning, Reshard::kYes, kReplicated},
    {kLightningSharded, Reshard::kYes, kReshards},
    {kLightningDeepSpeed, Reshard::kNo, kZeroRefuses},
    {kDcp, Reshard::kYes, kReshards},
    {kDeepSpeed, Reshard::kNo, kZeroRefuses},
    {kDeepSpeedUniversal, Reshard::kYes, "a universal checkpoint is made to be loaded by any world size"},
    {kMegatron, Reshard::kNotKnown,
     "Megatron's legacy format keeps its optimizer by data parallel rank unless it was saved whole; save as "
     "torch_dist"},
    {kMegatronDist, Reshard::kYes, "Megatron's torch_dist format is laid out anew when it is loaded"},
    {kMegatronDcp, Reshard::kYes, kReshards},
    {kNemo, Reshard::kYes,
     "NeMo 2 saves Megatron's torch_dist format, which is laid out anew when it is loaded"},
};

}  // namespace

ReshardAnswer CanLoadAtOtherWorldSize(std::string_view format) {
  for (const Row& row : kRows) {
    if (row.format == format) return {row.answer, row.reason};
  }
  return {Reshard::kNotKnown, "the checkpoint's format is not known"};
}

}  // namespace dgxrun::agent::ckpt
