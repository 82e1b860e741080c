// The judge over every format, on files in memory: what is complete, and what a crash leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/merge.h"
#include "agent/ckpt/tracker.h"
#include "tests/unit/ckpt_kit.h"

namespace dgxrun::agent::ckpt {
namespace {

using kit::kSecond;
using kit::MemorySource;
using kit::PDict;
using kit::PInt;
using kit::PText;
using kit::TorchFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

JudgeOptions Options() {
  JudgeOptions options;
  options.now = absl::FromUnixSeconds(1'800'000'000);
  return options;
}

v1::Checkpoint Of(MemorySource& source, const std::string& path, JudgeOptions options = Options()) {
  return Judge(source, path, options).checkpoint();
}

std::string Said(const v1::Checkpoint& checkpoint) {
  return std::string(VerdictName(checkpoint.verdict())) + " " + checkpoint.format() + " " +
         checkpoint.file() + ": " + checkpoint.reason();
}

using Maker = std::function<void(MemorySource&)>;

// For a checkpoint in folder `name`: complete as made; not so when any file is missing or cut off anywhere.
void EveryLossIsFound(const std::string& name, const Maker& make, std::string_view format,
                      const std::vector<std::string>& harmless = {}) {
  MemorySource whole;
  make(whole);
  const v1::Checkpoint complete = Of(whole, name);
  EXPECT_EQ(complete.verdict(), v1::VERDICT_COMPLETE) << Said(complete);
  EXPECT_EQ(complete.format(), format);
  EXPECT_EQ(complete.reason(), "");
  JudgeOptions deep = Options();
  deep.deep = true;
  EXPECT_EQ(Of(whole, name, deep).verdict(), v1::VERDICT_COMPLETE) << Said(Of(whole, name, deep));
  for (const auto& [path, file] : whole.files()) {
    if (std::find(harmless.begin(), harmless.end(), path) != harmless.end()) continue;
    if (!path.starts_with(name)) continue;
    MemorySource broken;
    make(broken);
    broken.Remove(path);
    const v1::Checkpoint missing = Of(broken, name);
    EXPECT_NE(missing.verdict(), v1::VERDICT_COMPLETE) << "without " << path;
    EXPECT_NE(missing.reason(), "") << path;
    const size_t size = file.bytes.size();
    for (size_t keep = 0; keep < size; keep += 1 + size / 7) {
      MemorySource cut;
      make(cut);
      cut.files()[path].bytes.resize(keep);
      EXPECT_NE(Of(cut, name).verdict(), v1::VERDICT_COMPLETE)
          << path << " cut to " << keep << " of " << size;
    }
  }
}

// ---- torch DCP

Maker Dcp(const std::string& folder) {
  return [folder](MemorySource& source) { kit::PutDcp(source, folder, kit::TwoShards()); };
}

TEST(DcpJudge, Losses) { EveryLossIsFound("step-10", Dcp("step-10"), kDcp); }

TEST(DcpJudge, StepAndSaveId) {
  MemorySource source;
  Dcp("step-10")(source);
  const v1::CheckpointFinding finding = Judge(source, "step-10", Options());
  EXPECT_EQ(finding.checkpoint().step(), 10);
  EXPECT_EQ(finding.save_id(), "save-1");
  EXPECT_EQ(finding.checkpoint().path(), "/ckpt/step-10");
  EXPECT_GT(finding.checkpoint().bytes(), 0U);
}

TEST(DcpJudge, NotRenamedYet) {
  MemorySource source;
  Dcp("s")(source);
  source.files()["s/.metadata.tmp"] = source.files()["s/.metadata"];
  source.Remove("s/.metadata");
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_UNCOMMITTED);
  EXPECT_EQ(Of(source, "s").file(), ".metadata.tmp");
  source.files()["s/.metadata.tmp"].bytes.resize(100);
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_PARTIAL);
}

// A second save into the same folder, killed at every point.
TEST(DcpJudge, OverwrittenInPlace) {
  MemorySource source;
  Dcp("s")(source);
  const std::vector<kit::DcpShard> anew = kit::TwoShards("new");
  source.Overwrite("s/__0_0.distcp", kit::DcpBytes(anew[0]));
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_CORRUPT);
  EXPECT_THAT(Of(source, "s").reason(), HasSubstr("two saves"));
  source.Overwrite("s/__1_0.distcp", kit::DcpBytes(anew[1]));
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_CORRUPT);
  source.Put("s/.metadata.tmp", kit::DcpMetadata(anew));
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_UNCOMMITTED);
  source.Remove("s/.metadata");
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_UNCOMMITTED);
  source.Remove("s/.metadata.tmp");
  source.Put("s/.metadata", kit::DcpMetadata(anew));
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_COMPLETE);
}

TEST(DcpJudge, LengthsOfAnotherSave) {
  MemorySource source;
  Dcp("s")(source);
  std::vector<kit::DcpShard> longer = kit::TwoShards();
  longer[0].streams.push_back(TorchFile());
  source.files()["s/__0_0.distcp"].bytes = kit::DcpBytes(longer[0]);
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_CORRUPT);
}

TEST(DcpJudge, CopiesWithoutTheirTimes) {
  MemorySource copy;  // .metadata first, as a folder may list it
  const std::vector<kit::DcpShard> shards = kit::TwoShards();
  copy.Put("s/.metadata", kit::DcpMetadata(shards));
  for (const kit::DcpShard& shard : shards) copy.Put("s/" + shard.name, kit::DcpBytes(shard));
  EXPECT_EQ(Of(copy, "s").verdict(), v1::VERDICT_COMPLETE) << Said(Of(copy, "s"));
  // The same order, but with an hour before the last file: that is no copy.
  copy.files()["s/__1_0.distcp"].mtime_ns += 3600 * kSecond;
  copy.files()["s/__1_0.distcp"].btime_ns += 3600 * kSecond;
  EXPECT_EQ(Of(copy, "s").verdict(), v1::VERDICT_CORRUPT);
}

TEST(DcpJudge, TimesOfANetworkFolder) {
  MemorySource source;
  source.set_one_clock(false);
  Dcp("s")(source);
  for (auto& [path, file] : source.files()) file.btime_ns = 0;
  source.files()["s/__0_0.distcp"].mtime_ns += kSecond;  // another node's clock
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_COMPLETE);
  source.files()["s/__0_0.distcp"].mtime_ns += 60 * kSecond;
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_CORRUPT);
}

TEST(DcpJudge, NoWayOutOfTheFolder) {
  for (const char* name : {"../x.distcp", "/etc/passwd", "a/../../x", ""}) {
    MemorySource source;
    std::vector<kit::DcpShard> shards = kit::TwoShards();
    shards[0].name = name;
    source.Put("x.distcp", kit::DcpBytes(shards[0]));
    source.Put("s/__1_0.distcp", kit::DcpBytes(shards[1]));
    source.Put("s/.metadata", kit::DcpMetadata(shards));
    EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_CORRUPT) << name;
  }
  MemorySource source;
  Dcp("s")(source);
  source.Remove("s/__0_0.distcp");
  source.PutLink("s/__0_0.distcp", "/elsewhere");
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_CORRUPT);
  EXPECT_THAT(Of(source, "s").reason(), HasSubstr("symbolic link"));
}

TEST(DcpJudge, HolesAreFoundDeep) {
  MemorySource source;
  Dcp("s")(source);
  std::string& bytes = source.files()["s/__0_0.distcp"].bytes;
  bytes.replace(150, 256, std::string(256, '\0'));
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_COMPLETE);
  JudgeOptions deep = Options();
  deep.deep = true;
  EXPECT_EQ(Of(source, "s", deep).verdict(), v1::VERDICT_CORRUPT);
}

TEST(DcpJudge, SplitOverTwoNodes) {
  MemorySource first, second;
  Dcp("s")(first);
  Dcp("s")(second);
  first.Remove("s/__1_0.distcp");
  second.Remove("s/__0_0.distcp");
  second.Remove("s/.metadata");
  const v1::CheckpointFinding a = Judge(first, "s", Options()), b = Judge(second, "s", Options());
  EXPECT_EQ(a.checkpoint().verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(b.checkpoint().verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(MergeFindings({{a}, {b}})[0].checkpoint().verdict(), v1::VERDICT_COMPLETE);
  EXPECT_EQ(MergeFindings({{a}})[0].checkpoint().verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(MergeFindings({{a}})[0].checkpoint().reason(), a.checkpoint().reason());
  second.files()["s/__1_0.distcp"].bytes.resize(1000);
  const v1::CheckpointFinding cut = Judge(second, "s", Options());
  EXPECT_EQ(MergeFindings({{a}, {cut}})[0].checkpoint().verdict(), v1::VERDICT_PARTIAL);
}

TEST(DcpJudge, BeingWritten) {
  MemorySource source;
  Dcp("s")(source);
  source.Remove("s/.metadata");
  JudgeOptions options = Options();
  options.now = absl::FromUnixNanos(source.now_ns() + 3 * kSecond);
  options.quiet_time = absl::Seconds(10);
  EXPECT_EQ(Of(source, "s", options).verdict(), v1::VERDICT_WRITING);
  options.now += absl::Seconds(10);
  EXPECT_EQ(Of(source, "s", options).verdict(), v1::VERDICT_PARTIAL);
}

// ---- transformers' Trainer

Maker Trainer(const std::string& folder) {
  return [folder](MemorySource& source) { kit::PutTrainer(source, folder, 20); };
}

TEST(TrainerJudge, Losses) {
  EveryLossIsFound("checkpoint-20", Trainer("checkpoint-20"), kTrainer,
                   {"checkpoint-20/generation_config.json", "checkpoint-20/rng_state_1.pth"});
}

TEST(TrainerJudge, ASmallerWorldHasFewerRandomStates) {
  MemorySource source;
  kit::PutTrainer(source, "checkpoint-10", 10);
  kit::PutTrainer(source, "checkpoint-20", 20);
  source.Remove("checkpoint-20/rng_state_1.pth");
  const auto newest = [&](std::vector<uint32_t> world_sizes) {
    JudgeOptions options = Options();
    options.world_sizes = std::move(world_sizes);
    return ListCheckpoints(source, options)->at(0).checkpoint();
  };
  EXPECT_EQ(Of(source, "checkpoint-20").verdict(), v1::VERDICT_COMPLETE) << "alone";
  EXPECT_EQ(newest({}).verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(newest({}).file(), "rng_state_1.pth");
  EXPECT_EQ(newest({2}).verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(newest({1, 2}).verdict(), v1::VERDICT_COMPLETE) << "an elastic job wrote it with one rank";
  EXPECT_EQ(newest({4}).verdict(), v1::VERDICT_PARTIAL);
}

TEST(TrainerJudge, OnlyTheModel) {
  MemorySource source;
  Trainer("checkpoint-20")(source);
  for (const char* name : {"optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"}) {
    source.Remove(std::string("checkpoint-20/") + name);
  }
  EXPECT_EQ(Of(source, "checkpoint-20").verdict(), v1::VERDICT_WEIGHTS_ONLY);
}

TEST(TrainerJudge, FilesOfAnotherStep) {
  MemorySource source;
  kit::PutTrainer(source, "checkpoint-30", 20);
  EXPECT_EQ(Of(source, "checkpoint-30").verdict(), v1::VERDICT_CORRUPT);
  EXPECT_EQ(Of(source, "checkpoint-30").step(), 20);
}

TEST(TrainerJudge, SavedOverAndKilled) {
  for (const char* name :
       {"model.safetensors", "optimizer.pt", "scheduler.pt", "config.json", "rng_state_0.pth"}) {
    MemorySource source;
    Trainer("checkpoint-20")(source);
    const std::string path = std::string("checkpoint-20/") + name;
    source.Overwrite(path, source.files()[path].bytes);
    EXPECT_EQ(Of(source, "checkpoint-20").verdict(), v1::VERDICT_CORRUPT) << name;
  }
}

TEST(TrainerJudge, SaysThatItIsNotFinished) {
  MemorySource source;
  Trainer("checkpoint-20")(source);
  source.Put("checkpoint-20/checkpoint-is-incomplete.txt", "");
  EXPECT_EQ(Of(source, "checkpoint-20").verdict(), v1::VERDICT_PARTIAL);
}

std::string Index(const std::vector<std::pair<std::string, std::string>>& map) {
  std::string json = "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {";
  for (size_t i = 0; i < map.size(); ++i) {
    json += (i == 0 ? "\"" : ", \"") + map[i].first + "\": \"" + map[i].second + "\"";
  }
  return json + "}}";
}

Maker Sharded(const std::string& folder) {
  return [folder](MemorySource& source) {
    Trainer(folder)(source);
    source.Remove(folder + "/model.safetensors");
    MemorySource earlier(source.now_ns() - 8'500'000);
    earlier.Put("1", kit::Safetensors({{"a", 400}}));
    earlier.Put("2", kit::Safetensors({{"b", 400}}));
    earlier.Put(
        "3", Index({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}));
    source.files()[folder + "/model-00001-of-00002.safetensors"] = earlier.files()["1"];
    source.files()[folder + "/model-00002-of-00002.safetensors"] = earlier.files()["2"];
    source.files()[folder + "/model.safetensors.index.json"] = earlier.files()["3"];
    // config.json comes before the weights.
    source.files()[folder + "/config.json"].mtime_ns = earlier.files()["1"].mtime_ns - 10;
    source.files()[folder + "/config.json"].btime_ns = earlier.files()["1"].mtime_ns - 20;
  };
}

TEST(TrainerJudge, ShardsAndTheirIndex) {
  EveryLossIsFound("checkpoint-20", Sharded("checkpoint-20"), kTrainer,
                   {"checkpoint-20/generation_config.json", "checkpoint-20/rng_state_1.pth"});
  MemorySource source;
  Sharded("checkpoint-20")(source);
  source.files()["checkpoint-20/model-00002-of-00002.safetensors"].bytes = kit::Safetensors({{"c", 400}});
  EXPECT_EQ(Of(source, "checkpoint-20").verdict(), v1::VERDICT_CORRUPT);
  Sharded("checkpoint-20")(source);
  source.files()["checkpoint-20/model.safetensors.index.json"].bytes =
      Index({{"a", "../../model.safetensors"}});
  EXPECT_EQ(Of(source, "checkpoint-20").verdict(), v1::VERDICT_CORRUPT);
}

TEST(TrainerJudge, Adapters) {
  auto make = [](MemorySource& source) {
    Trainer("checkpoint-20")(source);
    source.files()["checkpoint-20/adapter_model.safetensors"] =
        source.files()["checkpoint-20/model.safetensors"];
    source.files()["checkpoint-20/adapter_config.json"] =
        source.files()["checkpoint-20/generation_config.json"];
    source.Remove("checkpoint-20/model.safetensors");
    source.Remove("checkpoint-20/config.json");
    source.Remove("checkpoint-20/generation_config.json");
  };
  EveryLossIsFound("checkpoint-20", make, kTrainer, {"checkpoint-20/rng_state_1.pth"});
}

TEST(TrainerJudge, Fsdp) {
  auto make = [](MemorySource& source) {
    kit::PutDcp(source, "checkpoint-20/pytorch_model_fsdp_0", kit::TwoShards());
    kit::PutDcp(source, "checkpoint-20/optimizer_0", kit::TwoShards());
    Trainer("checkpoint-20")(source);
    source.Remove("checkpoint-20/model.safetensors");
    source.Remove("checkpoint-20/optimizer.pt");
  };
  EveryLossIsFound("checkpoint-20", make, kTrainerFsdp,
                   {"checkpoint-20/generation_config.json", "checkpoint-20/rng_state_1.pth"});
}

// ---- DeepSpeed

std::string ModelState(int64_t step, int64_t dp, int stage = 1) {
  return TorchFile(
      {{PText("global_steps"), PInt(step)},
       {PText("dp_world_size"), PInt(dp)},
       {PText("mp_world_size"), PInt(1)},
       {PText("optimizer"), kit::PNone()},
       {PText("ds_config"), PDict({{PText("zero_optimization"), PDict({{PText("stage"), PInt(stage)}})}})}});
}

Maker Zero(const std::string& folder, int64_t step, int64_t dp, int stage) {
  return [=](MemorySource& source) {
    for (int64_t rank = 0; rank < dp; ++rank) {
      const std::string number = std::to_string(rank);
      source.Put(folder + "/bf16_zero_pp_rank_" + number + "_mp_rank_00_optim_states.pt", TorchFile());
      if (stage == 3)
        source.Put(folder + "/zero_pp_rank_" + number + "_mp_rank_00_model_states.pt",
                   ModelState(step, dp, 3));
    }
    if (stage < 3) source.Put(folder + "/mp_rank_00_model_states.pt", ModelState(step, dp, stage));
  };
}

TEST(DeepSpeedJudge, Losses) {
  EveryLossIsFound("global_step10", Zero("global_step10", 10, 4, 1), kDeepSpeed);
  EveryLossIsFound("global_step10", Zero("global_step10", 10, 3, 3), kDeepSpeed);
}

TEST(DeepSpeedJudge, TheHighestRankIsMissingToo) {
  MemorySource source;
  Zero("global_step10", 10, 4, 1)(source);
  source.Remove("global_step10/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt");
  EXPECT_EQ(Of(source, "global_step10").verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(Of(source, "global_step10").file(), "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt");
  for (int rank = 0; rank < 3; ++rank) {
    source.Remove("global_step10/bf16_zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt");
  }
  EXPECT_EQ(Of(source, "global_step10").verdict(), v1::VERDICT_PARTIAL);
}

TEST(DeepSpeedJudge, AnotherStep) {
  MemorySource source;
  Zero("global_step20", 10, 2, 3)(source);
  EXPECT_EQ(Of(source, "global_step20").verdict(), v1::VERDICT_CORRUPT);
  MemorySource mixed;
  Zero("tag", 20, 2, 3)(mixed);
  mixed.files()["tag/zero_pp_rank_1_mp_rank_00_model_states.pt"].bytes = ModelState(10, 2, 3);
  EXPECT_EQ(Of(mixed, "tag").verdict(), v1::VERDICT_CORRUPT);
}

TEST(DeepSpeedJudge, SavedOverAfterLatestNamedIt) {
  MemorySource source;
  Zero("global_step10", 10, 2, 1)(source);
  source.Put("latest", "global_step10");
  EXPECT_EQ(Of(source, "global_step10").verdict(), v1::VERDICT_COMPLETE);
  source.Advance(60 * kSecond);  // a slow rank
  source.Overwrite("global_step10/mp_rank_00_model_states.pt", ModelState(10, 2));
  EXPECT_EQ(Of(source, "global_step10").verdict(), v1::VERDICT_COMPLETE);
  source.Advance(600 * kSecond);
  source.Overwrite("global_step10/mp_rank_00_model_states.pt", ModelState(10, 2));
  EXPECT_EQ(Of(source, "global_step10").verdict(), v1::VERDICT_CORRUPT);
  source.Overwrite("latest", "global_step10");
  EXPECT_EQ(Of(source, "global_step10").verdict(), v1::VERDICT_COMPLETE);
}

TEST(DeepSpeedJudge, ExpertsAndPipelines) {
  auto make = [](MemorySource& source) {
    Zero("global_step10", 10, 2, 1)(source);
    for (const char* name :
         {"layer_0_expert_0_mp_rank_00_model_states.pt", "layer_0_expert_1_mp_rank_00_model_states.pt",
          "layer_1_expert_0_mp_rank_00_model_states.pt", "layer_1_expert_1_mp_rank_00_model_states.pt",
          "expp_rank_0_mp_rank_00_optim_states.pt", "expp_rank_1_mp_rank_00_optim_states.pt",
          "mp_rank_01_model_states.pt", "layer_02-model_00-model_states.pt",
          "layer_02-model_01-model_states.pt"}) {
      source.Put(std::string("global_step10/") + name,
                 std::string_view(name).starts_with("mp_rank") ? ModelState(10, 2) : TorchFile());
    }
    for (const char* more :
         {"bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt", "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt",
          "layer_0_expert_0_mp_rank_01_model_states.pt", "layer_0_expert_1_mp_rank_01_model_states.pt",
          "layer_1_expert_0_mp_rank_01_model_states.pt", "layer_1_expert_1_mp_rank_01_model_states.pt",
          "expp_rank_0_mp_rank_01_optim_states.pt", "expp_rank_1_mp_rank_01_optim_states.pt"}) {
      source.Put(std::string("global_step10/") + more, TorchFile());
    }
  };
  EveryLossIsFound("global_step10", make, kDeepSpeed);
}

TEST(DeepSpeedJudge, InsideATrainer) {
  auto make = [](MemorySource& source) {
    Zero("checkpoint-20/global_step20", 20, 2, 1)(source);
    source.Put("checkpoint-20/latest", "global_step20");
    Trainer("checkpoint-20")(source);
    source.Remove("checkpoint-20/model.safetensors");
    source.Remove("checkpoint-20/optimizer.pt");
    source.Remove("checkpoint-20/scheduler.pt");
  };
  EveryLossIsFound("checkpoint-20", make, kTrainerDeepSpeed,
                   {"checkpoint-20/generation_config.json", "checkpoint-20/rng_state_1.pth"});
}

// ---- Megatron-LM and NeMo

Maker MegatronDist(const std::string& folder) {
  return [folder](MemorySource& source) {
    source.Put(folder + "/common.pt", TorchFile({{PText("iteration"), PInt(300)}}));
    kit::PutDcp(source, folder, kit::TwoShards(), "m", true);
    source.Put(folder + "/metadata.json",
               R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
  };
}

TEST(MegatronJudge, Losses) {
  EveryLossIsFound("iter_0000300", MegatronDist("iter_0000300"), kMegatronDist, {"iter_0000300/common.pt"});
  auto legacy = [](MemorySource& source) {
    for (const char* rank : {"mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"}) {
      source.Put(std::string("iter_0000300/") + rank + "/model_optim_rng.pt",
                 TorchFile({{PText("iteration"), PInt(300)}}));
      source.Put(std::string("iter_0000300/") + rank + "/distrib_optim.pt", TorchFile());
    }
  };
  EveryLossIsFound("iter_0000300", legacy, kMegatron);
}

TEST(MegatronJudge, AnotherIteration) {
  MemorySource source;
  MegatronDist("iter_0000400")(source);
  EXPECT_EQ(Of(source, "iter_0000400").verdict(), v1::VERDICT_CORRUPT);
  MemorySource legacy;
  legacy.Put("iter_0000400/mp_rank_00/model_optim_rng.pt", TorchFile({{PText("iteration"), PInt(300)}}));
  EXPECT_EQ(Of(legacy, "iter_0000400").verdict(), v1::VERDICT_CORRUPT);
}

TEST(MegatronJudge, Digests) {
  // SHA-256 of "abc" and of nothing (FIPS 180-2).
  const std::string abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  const std::string none = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
  const auto manifest = [&](const std::string& digest, const std::string& more = "") {
    return R"({"algorithm": "sha256", "files": {"tokens.txt": ")" + digest + R"(", "none.txt": ")" + none +
           "\"" + more + "}}";
  };
  JudgeOptions deep = Options();
  deep.deep = true;
  const auto judged = [&](const std::string& text, const JudgeOptions& options) {
    MemorySource source;
    MegatronDist("iter_0000300")(source);
    source.Put("iter_0000300/tokens.txt", "abc");
    source.Put("iter_0000300/none.txt", "");
    source.Put("iter_0000300/integrity.json", text);
    return Of(source, "iter_0000300", options);
  };
  EXPECT_EQ(judged(manifest(abc), deep).verdict(), v1::VERDICT_COMPLETE) << Said(judged(manifest(abc), deep));
  EXPECT_EQ(judged(manifest(none), Options()).verdict(), v1::VERDICT_COMPLETE) << "data is not read";
  const v1::Checkpoint damaged = judged(manifest(none), deep);
  EXPECT_EQ(damaged.verdict(), v1::VERDICT_CORRUPT);
  EXPECT_EQ(damaged.file(), "tokens.txt");
  const v1::Checkpoint missing = judged(manifest(abc, R"(, "__7_0.distcp": "00")"), Options());
  EXPECT_EQ(missing.verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(missing.file(), "__7_0.distcp");
  for (const char* name : {"../x", "/etc/passwd", "a/b", ""}) {
    EXPECT_EQ(judged(manifest(abc, absl::StrCat(", \"", name, "\": \"00\"")), Options()).verdict(),
              v1::VERDICT_CORRUPT)
        << name;
  }
  EXPECT_EQ(judged(manifest(abc).substr(0, 60), Options()).verdict(), v1::VERDICT_CORRUPT);
  EXPECT_EQ(judged(R"({"algorithm": "md5", "files": {"tokens.txt": "00"}})", deep).verdict(),
            v1::VERDICT_UNVERIFIED);
}

TEST(MegatronJudge, SavedOverAfterTheTrackerNamedIt) {
  MemorySource source;
  source.Put("iter_0000400/mp_rank_00/model_optim_rng.pt", TorchFile({{PText("iteration"), PInt(400)}}));
  source.Put("latest_checkpointed_iteration.txt", "400");
  EXPECT_EQ(Of(source, "iter_0000400").verdict(), v1::VERDICT_COMPLETE);
  source.Overwrite("iter_0000400/mp_rank_00/model_optim_rng.pt",
                   TorchFile({{PText("iteration"), PInt(400)}}));
  EXPECT_EQ(Of(source, "iter_0000400").verdict(), v1::VERDICT_CORRUPT);
}

TEST(MegatronJudge, DcpWithoutMegatronsKeysNeedsNoMetadataJson) {
  EveryLossIsFound("iter_0000300", Dcp("iter_0000300"), kMegatronDcp);
}

TEST(NemoJudge, Losses) {
  auto make = [](MemorySource& source) {
    MegatronDist("m--step=10-last/weights")(source);
    source.Put("m--step=10-last/context/model.yaml", "a: 1");
  };
  EveryLossIsFound("m--step=10-last", make, kNemo,
                   {"m--step=10-last/weights/common.pt", "m--step=10-last/context/model.yaml"});
  MemorySource source;
  make(source);
  EXPECT_EQ(Of(source, "m--step=10-last").step(), 10);
  source.Put("m--step=10-last-unfinished", "");
  EXPECT_EQ(Of(source, "m--step=10-last").verdict(), v1::VERDICT_PARTIAL);
}

// ---- Lightning, accelerate, loose files

TEST(LightningJudge, OneFile) {
  MemorySource source;
  source.Put("last.ckpt", TorchFile({{PText("pytorch-lightning_version"), PText("2.6")},
                                     {PText("global_step"), PInt(30)}}));
  EXPECT_EQ(Of(source, "last.ckpt").verdict(), v1::VERDICT_COMPLETE);
  EXPECT_EQ(Of(source, "last.ckpt").format(), kLightning);
  EXPECT_EQ(Of(source, "last.ckpt").step(), 30);
  const std::string whole = source.files()["last.ckpt"].bytes;
  for (size_t size = 0; size < whole.size(); ++size) {
    source.files()["last.ckpt"].bytes = whole.substr(0, size);
    EXPECT_EQ(Of(source, "last.ckpt").verdict(), v1::VERDICT_PARTIAL) << size;
  }
}

TEST(LightningJudge, Folders) {
  auto sharded = [](MemorySource& source) {
    kit::PutDcp(source, "epoch=0-step=5.ckpt", kit::TwoShards());
    source.Put("epoch=0-step=5.ckpt/meta.pt", TorchFile({{PText("global_step"), PInt(5)}}));
  };
  EveryLossIsFound("epoch=0-step=5.ckpt", sharded, kLightningSharded);
  auto zero = [](MemorySource& source) {
    Zero("epoch=0-step=5.ckpt/checkpoint", 5, 2, 1)(source);
    source.Put("epoch=0-step=5.ckpt/latest", "checkpoint");
  };
  EveryLossIsFound("epoch=0-step=5.ckpt", zero, kLightningDeepSpeed);
}

TEST(AccelerateJudge, Losses) {
  auto make = [](MemorySource& source) {
    source.Put("checkpoint_3/model.safetensors", kit::Safetensors({{"w", 512}}));
    for (const char* name :
         {"optimizer.bin", "scheduler.bin", "sampler.bin", "random_states_0.pkl", "random_states_1.pkl"}) {
      source.Put(std::string("checkpoint_3/") + name, TorchFile());
    }
  };
  EveryLossIsFound(
      "checkpoint_3", make, kAccelerate,
      {"checkpoint_3/scheduler.bin", "checkpoint_3/sampler.bin", "checkpoint_3/random_states_1.pkl"});
  MemorySource source;
  make(source);
  JudgeOptions options = Options();
  options.now = absl::FromUnixNanos(source.now_ns() + kSecond);
  options.quiet_time = absl::Seconds(5);
  EXPECT_EQ(Of(source, "checkpoint_3", options).verdict(), v1::VERDICT_WRITING);  // nothing marks its end
}

TEST(TorchJudge, FilesOfOtherKinds) {
  MemorySource source;
  source.Put("step_1.pt", std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.", 14));
  EXPECT_EQ(Of(source, "step_1.pt").verdict(), v1::VERDICT_UNVERIFIED);
  EXPECT_EQ(Of(source, "step_1.pt").format(), kTorchLegacy);
  source.Put("step_2.pt", std::string(4096, '\0'));
  EXPECT_EQ(Of(source, "step_2.pt").verdict(), v1::VERDICT_CORRUPT);
  source.Put("step_3.pt", "");
  EXPECT_EQ(Of(source, "step_3.pt").verdict(), v1::VERDICT_PARTIAL);
  source.Put("step_4.pt", "x");
  EXPECT_EQ(Of(source, "step_4.pt").verdict(), v1::VERDICT_UNVERIFIED);
  source.Put("step_5.pkl", kit::Pickled(PDict({{PText("a"), PInt(1)}})));
  EXPECT_EQ(Of(source, "step_5.pkl").verdict(), v1::VERDICT_COMPLETE);
  source.files()["step_5.pkl"].bytes.resize(5);
  EXPECT_EQ(Of(source, "step_5.pkl").verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(Of(source, "nothing.pt").verdict(), v1::VERDICT_UNVERIFIED);
  source.Put("model.pt", TorchFile({{PText("step"), PInt(77)}}));
  EXPECT_EQ(Of(source, "model.pt").step(), 77);
}

TEST(TorchJudge, ZerosInSafetensorsDeep) {
  MemorySource source;
  source.Put("m.safetensors", kit::Safetensors({{"w", 8192}}));
  JudgeOptions deep = Options();
  deep.deep = true;
  EXPECT_EQ(Of(source, "m.safetensors", deep).verdict(), v1::VERDICT_COMPLETE);
  source.files()["m.safetensors"].bytes.replace(1000, 512, std::string(512, '\0'));
  EXPECT_EQ(Of(source, "m.safetensors").verdict(), v1::VERDICT_COMPLETE);
  EXPECT_EQ(Of(source, "m.safetensors", deep).verdict(), v1::VERDICT_UNVERIFIED);
  source.Put("z.safetensors", kit::Safetensors({{"w", 8192}}, '\0'));  // space was made, data never came
  EXPECT_EQ(Of(source, "z.safetensors", deep).verdict(), v1::VERDICT_UNVERIFIED);
}

// ---- listings

std::vector<std::string> List(MemorySource& source, JudgeOptions options = Options()) {
  absl::StatusOr<std::vector<v1::CheckpointFinding>> findings = ListCheckpoints(source, options);
  EXPECT_TRUE(findings.ok()) << findings.status();
  std::vector<std::string> lines;
  for (const v1::CheckpointFinding& finding : *findings) {
    const v1::Checkpoint& checkpoint = finding.checkpoint();
    lines.push_back(checkpoint.path().substr(6) + " " + std::to_string(checkpoint.step()) + " " +
                    VerdictName(checkpoint.verdict()));
  }
  return lines;
}

TEST(Listing, NewestFirstWithoutWhatIsNone) {
  MemorySource source;
  kit::PutTrainer(source, "checkpoint-9", 9);
  kit::PutTrainer(source, "checkpoint-10", 10);
  source.Remove("checkpoint-10/optimizer.pt");
  for (const char* name : {"checkpoint-11.dgxrun-quarantine/a", "tmp-checkpoint-12/a", ".hidden/a",
                           "runs/events.1", "notes/readme.md"}) {
    source.Put(name, "x");
  }
  for (const char* name : {"trainer_state.json", "config.json", "training_args.bin", "train.log"})
    source.Put(name, "{}");
  source.Put("model.safetensors", kit::Safetensors({{"w", 16}}));
  EXPECT_THAT(List(source), ElementsAre("checkpoint-10 10 PARTIAL", "checkpoint-9 9 COMPLETE"));
}

TEST(Listing, LimitsAndStops) {
  MemorySource source;
  for (int step = 1; step <= 9; ++step) source.Put("step_" + std::to_string(step) + ".pt", TorchFile());
  source.files()["step_9.pt"].bytes.resize(50);
  JudgeOptions options = Options();
  options.limit = 3;
  EXPECT_THAT(List(source, options),
              ElementsAre("step_9.pt 9 PARTIAL", "step_8.pt 8 COMPLETE", "step_7.pt 7 COMPLETE"));
  options.limit = 0;
  options.stop_after_complete = 1;
  EXPECT_THAT(List(source, options), ElementsAre("step_9.pt 9 PARTIAL", "step_8.pt 8 COMPLETE"));
}

TEST(Listing, LightningAndItsLast) {
  MemorySource source;
  auto put = [&source](const std::string& name, int64_t step) {
    source.Put(name, TorchFile({{PText("pytorch-lightning_version"), PText("2")},
                                {PText("global_step"), PInt(step)}}));
  };
  put("epoch=0-step=10.ckpt", 10);
  put("epoch=1-step=20.ckpt", 20);
  put("last-v1.ckpt", 25);
  source.PutLink("last.ckpt", "epoch=1-step=20.ckpt");
  source.PutLink("step_99.ckpt", "/somewhere/else.ckpt");
  EXPECT_THAT(List(source), ElementsAre("step_99.ckpt 99 UNVERIFIED", "epoch=1-step=20.ckpt 20 COMPLETE",
                                        "epoch=0-step=10.ckpt 10 COMPLETE", "last-v1.ckpt 1 COMPLETE"));
}

TEST(Listing, PartsOfOneCheckpoint) {
  MemorySource source;
  for (int step : {100, 200}) {
    for (int rank = 0; rank < 3; ++rank) {
      source.Put("c_" + std::to_string(step) + "_rank" + std::to_string(rank) + ".pt", TorchFile());
    }
  }
  EXPECT_THAT(List(source), ElementsAre("c_200_rank0.pt 200 COMPLETE", "c_100_rank0.pt 100 COMPLETE"));
  source.Remove("c_200_rank1.pt");
  EXPECT_THAT(List(source), ElementsAre("c_200_rank0.pt 200 PARTIAL", "c_100_rank0.pt 100 COMPLETE"));
  source.Put("c_200_rank1.pt", TorchFile());
  source.Remove("c_200_rank2.pt");  // the other step has it
  EXPECT_THAT(List(source), ElementsAre("c_200_rank0.pt 200 PARTIAL", "c_100_rank0.pt 100 COMPLETE"));
}

TEST(Listing, FilesThatTheOlderOneHas) {
  MemorySource source;
  for (const char* folder : {"checkpoint_0", "checkpoint_1"}) {
    source.Put(std::string(folder) + "/model.safetensors", kit::Safetensors({{"w", 512}}));
    for (const char* name :
         {"optimizer.bin", "scheduler.bin", "random_states_0.pkl", "random_states_1.pkl"}) {
      source.Put(std::string(folder) + "/" + name, TorchFile());
    }
  }
  MegatronDist("iter_0000300")(source);
  MegatronDist("iter_0000200")(source);
  source.files()["iter_0000200/common.pt"].bytes = TorchFile({{PText("iteration"), PInt(200)}});
  source.Remove("iter_0000300/common.pt");
  source.Remove("checkpoint_1/random_states_1.pkl");
  EXPECT_THAT(List(source), ElementsAre("iter_0000300 300 PARTIAL", "iter_0000200 200 COMPLETE",
                                        "checkpoint_1 1 PARTIAL", "checkpoint_0 0 COMPLETE"));
}

TEST(Listing, TheRootIsTheCheckpoint) {
  MemorySource source;
  kit::PutDcp(source, "", kit::TwoShards());
  const auto findings = *ListCheckpoints(source, Options());
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].checkpoint().path(), "/ckpt");
  EXPECT_EQ(findings[0].checkpoint().verdict(), v1::VERDICT_COMPLETE);
}

TEST(Listing, MegatronWithItsTracker) {
  MemorySource source;
  MegatronDist("iter_0000300")(source);
  source.Put("iter_0000400/mp_rank_00/model_optim_rng.pt", "PK");
  source.Put("latest_checkpointed_iteration.txt", "");
  const auto findings = *ListCheckpoints(source, Options());
  ASSERT_EQ(findings.size(), 2U);
  const auto trackers = *FindTrackers(source, findings);
  ASSERT_EQ(trackers.size(), 1U);
  EXPECT_EQ(trackers[0].state, TrackerState::kEmpty);
  const TrackerRepair repair = RepairOf(trackers[0], &findings[1].checkpoint());
  EXPECT_EQ(repair.text, "300");
  source.Remove("latest_checkpointed_iteration.txt");
  EXPECT_EQ((*FindTrackers(source, findings))[0].state, TrackerState::kAbsent);
}

TEST(Listing, TooManyEntriesAndAnEmptyFolder) {
  MemorySource source;
  source.PutFolder("step_5");
  EXPECT_THAT(List(source), ElementsAre("step_5 5 PARTIAL"));
  for (size_t i = 0; i <= kMaxListedEntries; ++i) source.files()["f" + std::to_string(i)] = {};
  EXPECT_TRUE(absl::IsResourceExhausted(ListCheckpoints(source, Options()).status()));
}

// ---- costs

TEST(Cost, GrowsWithTheFilesAndNotWithTheirSize) {
  MemorySource source;
  std::vector<kit::DcpShard> shards;
  for (int rank = 0; rank < 300; ++rank)
    shards.push_back({"__" + std::to_string(rank) + "_0.distcp", {TorchFile()}});
  kit::PutDcp(source, "s", shards);
  EXPECT_EQ(Of(source, "s").verdict(), v1::VERDICT_COMPLETE);
  EXPECT_EQ(source.counts().stats, 302U);
  EXPECT_EQ(source.counts().opens, 301U);
  EXPECT_LE(source.counts().reads, 2U * 300 + 2);
  EXPECT_LE(source.counts().bytes, 300U * 1100 + source.files()["s/.metadata"].bytes.size());
}

TEST(Cost, ABudgetMakesItUnverified) {
  MemorySource source;
  Dcp("s")(source);
  JudgeOptions options = Options();
  options.max_calls = 9;
  EXPECT_EQ(Of(source, "s", options).verdict(), v1::VERDICT_UNVERIFIED);
}

// ---- the real files of ../shared/checkpoints

class RealFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("DGXRUN_SHARED");
    root_ = folder != nullptr ? folder : DGXRUN_SHARED_DEFAULT;
    root_ += "/checkpoints";
    if (!std::filesystem::exists(root_)) {
      std::fprintf(stderr, "%s is not there: the tests over real checkpoints cannot run\n", root_.c_str());
      GTEST_SKIP() << root_ << " is not there";
    }
  }
  std::string root_;
};

TEST_F(RealFiles, AreComplete) {
  const std::pair<const char*, std::vector<std::string>> kFolders[] = {
      {"hf-trainer", {"trainer", "trainer"}},
      {"dcp", {"dcp", "dcp"}},
      {"lightning", {"lightning", "lightning", "lightning", "lightning"}}};
  for (const auto& [folder, formats] : kFolders) {
    for (const bool deep : {false, true}) {
      absl::StatusOr<std::unique_ptr<Source>> source = OpenFolder(root_ + "/" + folder);
      ASSERT_TRUE(source.ok()) << source.status();
      JudgeOptions options = Options();
      options.deep = deep;
      const auto findings = *ListCheckpoints(**source, options);
      std::vector<std::string> seen;
      for (const v1::CheckpointFinding& finding : findings) {
        EXPECT_EQ(finding.checkpoint().verdict(), v1::VERDICT_COMPLETE) << Said(finding.checkpoint());
        seen.push_back(finding.checkpoint().format());
      }
      EXPECT_EQ(seen, formats);
    }
  }
}

// Loads a real checkpoint into memory and breaks it there.
void LoadReal(const std::string& from, const std::string& name, MemorySource& source) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(from))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& n) { return n != ".metadata" && n != "trainer_state.json"; });
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& n) { return n != "rng_state_1.pth"; });
  for (const std::string& n : names) {
    std::FILE* file = std::fopen((from + "/" + n).c_str(), "rb");
    std::string bytes(std::filesystem::file_size(from + "/" + n), '\0');
    ASSERT_EQ(std::fread(bytes.data(), 1, bytes.size(), file), bytes.size());
    std::fclose(file);
    if (n == "training_args.bin") source.Advance(-30'000'000);
    source.Put(name + "/" + n, std::move(bytes));
    if (n == "training_args.bin") source.Advance(30'000'000);
  }
}

TEST_F(RealFiles, EveryLossIsFound) {
  EveryLossIsFound(
      "step-20", [this](MemorySource& source) { LoadReal(root_ + "/dcp/step-20", "step-20", source); }, kDcp);
  EveryLossIsFound("checkpoint-20",
                   [this](MemorySource& source) {
                     LoadReal(root_ + "/hf-trainer/checkpoint-20", "checkpoint-20", source);
                   },
                   kTrainer, {"checkpoint-20/generation_config.json", "checkpoint-20/rng_state_1.pth"});
}

}  // namespace
}  // namespace dgxrun::agent::ckpt
