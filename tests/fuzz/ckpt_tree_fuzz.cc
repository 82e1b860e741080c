// The whole judge on a tree of files in memory. The input picks names, contents and times; contents are sound
// ones of every format, the input's own bytes, or sound ones with some of its bytes put in.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "agent/ckpt/judge.h"
#include "agent/ckpt/merge.h"
#include "agent/ckpt/tracker.h"
#include "agent/utf8.h"
#include "dgxrun/v1/job.pb.h"
#include "tests/fuzz/require.h"
#include "tests/unit/ckpt_kit.h"

using namespace dgxrun::agent::ckpt;  // NOLINT: one fuzzer

namespace {

const std::vector<std::string>& Names() {
  static const std::vector<std::string> names = {".metadata",
                                                 ".metadata.tmp",
                                                 "__0_0.distcp",
                                                 "__1_0.distcp",
                                                 "metadata.json",
                                                 "common.pt",
                                                 "meta.pt",
                                                 "trainer_state.json",
                                                 "config.json",
                                                 "model.safetensors",
                                                 "model.safetensors.index.json",
                                                 "model-00001-of-00002.safetensors",
                                                 "model-00002-of-00002.safetensors",
                                                 "training_args.bin",
                                                 "optimizer.pt",
                                                 "scheduler.pt",
                                                 "rng_state_0.pth",
                                                 "rng_state_1.pth",
                                                 "random_states_0.pkl",
                                                 "optimizer.bin",
                                                 "latest",
                                                 "mp_rank_00_model_states.pt",
                                                 "zero_pp_rank_0_mp_rank_00_model_states.pt",
                                                 "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
                                                 "mp_rank_00/model_optim_rng.pt",
                                                 "mp_rank_01_000/model_optim_rng.pt",
                                                 "weights/.metadata",
                                                 "context/x.yaml",
                                                 "optimizer_0/.metadata",
                                                 "checkpoint/mp_rank_00_model_states.pt",
                                                 "global_step5/mp_rank_00_model_states.pt",
                                                 "checkpoint-is-incomplete.txt",
                                                 "adapter_model.safetensors"};
  return names;
}

std::string Sound(FuzzedDataProvider& input, const std::string& name) {
  if (name.ends_with(".safetensors")) return kit::Safetensors({{"w", 64}, {"b", 16}});
  if (name.ends_with(".json")) {
    return "{\"global_step\": 5, \"sharded_backend\": \"torch_dist\", \"weight_map\": {\"w\": "
           "\"model-00001-of-00002.safetensors\", \"b\": \"model-00002-of-00002.safetensors\"}}";
  }
  if (name.ends_with(".distcp")) return kit::DcpBytes(kit::TwoShards()[name[2] == '1' ? 1 : 0]);
  if (name.find(".metadata") != std::string::npos) return kit::DcpMetadata(kit::TwoShards());
  if (name == "latest") return "global_step5";
  return kit::TorchFile({{kit::PText("global_steps"), kit::PInt(input.ConsumeIntegral<int8_t>())},
                         {kit::PText("dp_world_size"), kit::PInt(input.ConsumeIntegral<int32_t>())},
                         {kit::PText("iteration"), kit::PInt(5)}});
}

void Check(const dgxrun::v1::CheckpointFinding& finding) {
  const dgxrun::v1::Checkpoint& checkpoint = finding.checkpoint();
  using dgxrun::Require;
  Require(checkpoint.verdict() != dgxrun::v1::VERDICT_UNSPECIFIED, "no verdict");
  Require(checkpoint.verdict() == dgxrun::v1::VERDICT_COMPLETE || !checkpoint.reason().empty(), "no reason");
  Require(checkpoint.verdict() != dgxrun::v1::VERDICT_COMPLETE || checkpoint.reason().empty(),
          "a needless reason");
  Require(dgxrun::agent::IsUtf8(checkpoint.reason()) && dgxrun::agent::IsUtf8(checkpoint.file()),
          "not UTF-8");
  Require(checkpoint.reason().find('\n') == std::string::npos, "more than one line");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  kit::MemorySource source;
  const char* const kFolders[] = {"checkpoint-5", "iter_0000005", "step_5",
                                  "global_step5", "x.ckpt",       "checkpoint_5"};
  for (int files = input.ConsumeIntegralInRange<int>(1, 12); files > 0; --files) {
    const std::string folder = input.PickValueInArray(kFolders);
    const std::string name = Names()[input.ConsumeIntegralInRange<size_t>(0, Names().size() - 1)];
    std::string bytes = Sound(input, name);
    switch (input.ConsumeIntegralInRange<int>(0, 4)) {
      case 0:
        bytes = input.ConsumeRandomLengthString(400);
        break;
      case 1:
        bytes.resize(input.ConsumeIntegralInRange<size_t>(0, bytes.size()));
        break;
      case 2: {
        const std::string patch = input.ConsumeRandomLengthString(40);
        if (patch.size() < bytes.size()) {
          bytes.replace(input.ConsumeIntegralInRange<size_t>(0, bytes.size() - patch.size()), patch.size(),
                        patch);
        }
        break;
      }
      default:
        break;
    }
    if (input.ConsumeIntegralInRange<int>(0, 20) == 0) {
      source.PutLink(folder + "/" + name, "/outside");
    } else {
      source.Put(folder + "/" + name, bytes);
    }
    if (input.ConsumeIntegralInRange<int>(0, 5) == 0)
      source.Advance(input.ConsumeIntegral<int32_t>() * int64_t{1000});
  }
  JudgeOptions options;
  options.now = absl::FromUnixNanos(source.now_ns());
  options.deep = input.ConsumeBool();
  options.quiet_time = absl::Seconds(input.ConsumeIntegralInRange<int>(0, 3));
  options.world_size = input.ConsumeIntegralInRange<uint32_t>(0, 4);
  absl::StatusOr<std::vector<dgxrun::v1::CheckpointFinding>> findings = ListCheckpoints(source, options);
  dgxrun::Require(findings.ok(), "a listing failed");
  for (const dgxrun::v1::CheckpointFinding& finding : *findings) Check(finding);
  dgxrun::Require(MergeFindings({*findings, *findings}).size() == findings->size(),
                  "a shared folder is doubled");
  FindTrackers(source, *findings).status().IgnoreError();
  return 0;
}
