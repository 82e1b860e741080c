// What the names in a checkpoint folder say. Pure. MayBeCheckpoint and StepOfName are in judge.h.
#ifndef DGXRUN_AGENT_CKPT_NAMES_H_
#define DGXRUN_AGENT_CKPT_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dgxrun::agent::ckpt {

// .pt, .pth, .ckpt, .bin, .safetensors, .npz, .pkl: files that hold tensors.
bool HasDataExtension(std::string_view path);

// A file of which several belong together: "ckpt_100_rank0.pt", "ep1-ba100-rank2.pt",
// "step100-00001-of-00004.pt".
struct PartName {
  std::string group;   // the same for all of them: the name with '*' for the rank or number
  int64_t number = 0;  // from 0 for ranks; as written for "-0000i-of-0000n", which counts from 1
  int64_t of = 0;      // n; 0: ranks, which do not say how many there are
};
std::optional<PartName> ParsePartName(std::string_view name);
// The name of another part of the same group. `like`: any name of the group.
std::string PartNameOf(std::string_view like, int64_t number);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_NAMES_H_
