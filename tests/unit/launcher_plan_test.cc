// From the start message to argv, envp and masks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan.h"

namespace dgxrun {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

void Add(google::protobuf::RepeatedPtrField<v1::EnvVar>* list, const std::string& name,
         const std::string& value) {
  v1::EnvVar* var = list->Add();
  var->set_name(name);
  var->set_value(value);
}

v1::ShimStart Start() {
  v1::ShimStart start;
  start.set_mark("node:job.0");
  start.set_node_name("n7");
  start.set_log_dir("/logs/job/attempt_0");
  start.mutable_plan()->add_argv("python3");
  start.mutable_plan()->add_argv("train.py");
  start.mutable_plan()->set_cwd("/work dir");
  for (uint32_t i = 0; i < 2; ++i) {
    v1::RankPlan* rank = start.mutable_plan()->add_ranks();
    rank->set_rank(8 + i);
    rank->set_local_rank(i);
    Add(rank->mutable_env(), "RANK", std::to_string(8 + i));
  }
  return start;
}

TEST(Plan, OursWinsOverTheCallersEnvironment) {
  v1::ShimStart start = Start();
  auto* caller = start.mutable_environment()->mutable_vars();
  Add(caller, "WORLD_SIZE", "1");
  Add(caller, "RANK", "77");
  Add(caller, "DGXRUN_MARK", "forged");
  Add(caller, "HOME", "/home/u");
  Add(start.mutable_plan()->mutable_common_env(), "WORLD_SIZE", "16");
  Add(start.mutable_plan()->mutable_common_env(), "RANK", "78");
  absl::StatusOr<NodeSpawn> node = PlanSpawn(start);
  ASSERT_TRUE(node.ok()) << node.status();
  ASSERT_EQ(node->ranks.size(), 2u);
  EXPECT_THAT(node->ranks[1].env,
              ElementsAre("DGXRUN_MARK=node:job.0", "DGXRUN_NODE=n7", "HOME=/home/u", "RANK=9",
                          "TORCHELASTIC_ERROR_FILE=/logs/job/attempt_0/rank_9.error.json", "WORLD_SIZE=16"));
  EXPECT_EQ(node->ranks[1].stdout_path, "/logs/job/attempt_0/rank_9.out");
  EXPECT_EQ(node->ranks[1].stderr_path, "/logs/job/attempt_0/rank_9.err");
  EXPECT_EQ(node->cwd, "/work dir");
}

TEST(Plan, ProgramIsLookedUpInTheJobsPath) {
  v1::ShimStart start = Start();
  Add(start.mutable_environment()->mutable_vars(), "PATH", "/venv/bin::/usr/bin");
  EXPECT_THAT(PlanSpawn(start)->ranks[0].programs,
              ElementsAre("/venv/bin/python3", "./python3", "/usr/bin/python3"));
  start.mutable_plan()->set_argv(0, "./run");
  EXPECT_THAT(PlanSpawn(start)->ranks[0].programs, ElementsAre("./run"));
  v1::ShimStart none = Start();
  EXPECT_THAT(PlanSpawn(none)->ranks[0].programs, Contains("/usr/bin/python3"));
}

TEST(Plan, CpusBecomeAMask) {
  v1::ShimStart start = Start();
  for (uint32_t cpu : {0u, 3u, 64u}) start.mutable_plan()->mutable_ranks(0)->add_cpus(cpu);
  absl::StatusOr<NodeSpawn> node = PlanSpawn(start);
  EXPECT_THAT(node->ranks[0].cpu_mask, ElementsAre(9ul, 1ul));
  EXPECT_TRUE(node->ranks[1].cpu_mask.empty());
  start.mutable_plan()->mutable_ranks(0)->add_cpus(1u << 30);
  EXPECT_FALSE(PlanSpawn(start).ok());
}

TEST(Plan, TheTerminalIsForOneRankAndHasNoOutFile) {
  v1::ShimStart start = Start();
  start.mutable_plan()->set_inherit_terminal(true);
  EXPECT_EQ(PlanSpawn(start).status().code(), absl::StatusCode::kInvalidArgument);
  start.mutable_plan()->mutable_ranks()->RemoveLast();
  absl::StatusOr<NodeSpawn> node = PlanSpawn(start);
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(node->ranks[0].stdout_path, "");
  EXPECT_NE(node->ranks[0].stderr_path, "");
}

TEST(Plan, WhatNoKernelCouldRunIsRefused) {
  v1::ShimStart none = Start();
  none.mutable_plan()->clear_ranks();
  EXPECT_FALSE(PlanSpawn(none).ok());
  v1::ShimStart empty = Start();
  empty.mutable_plan()->clear_argv();
  EXPECT_FALSE(PlanSpawn(empty).ok());
  v1::ShimStart zero = Start();
  zero.mutable_plan()->set_argv(1, std::string("a\0b", 3));
  EXPECT_FALSE(PlanSpawn(zero).ok());
  v1::ShimStart secret = Start();
  Add(secret.mutable_environment()->mutable_vars(), "TOKEN", std::string("hidden\0value", 12));
  absl::StatusOr<NodeSpawn> refused = PlanSpawn(secret);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), Not(::testing::HasSubstr("hidden")));
}

}  // namespace
}  // namespace dgxrun
