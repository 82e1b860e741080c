// What ranks are started with: torchrun's names and formats, and ours.
#include "controller/core/placement.h"
#include "controller/core/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core_kit.h"

namespace dgxrun::core {
namespace {

using ::testing::ElementsAre;
using Kind = SendToNode::Kind;

std::map<std::string, std::string> Env(const v1::NodePlan& plan, int rank = -1) {
  std::map<std::string, std::string> env;
  for (const auto& var : plan.common_env()) env[var.name()] = var.value();
  if (rank < 0) return env;
  for (const auto& var : plan.ranks(rank).env()) env[var.name()] = var.value();
  return env;
}

v1::NodePlan PlanOf(CoreKit* kit, const v1::JobSpec& spec, const std::vector<std::string>& nodes,
                    size_t index, int64_t step = -1) {
  const JobId job = kit->Submit(spec);
  for (const auto& node : nodes) kit->Prepared(node, job, 0, step);
  const auto launches = kit->Sent(Kind::kLaunch);
  EXPECT_EQ(launches.size(), nodes.size());
  return launches.size() > index ? launches[index].message.launch().plan() : v1::NodePlan();
}

TEST(Plan, TorchrunsVariables) {
  CoreKit kit;
  kit.Connect({"a", 0, "192.168.1.5"});
  kit.Connect({"b", 0, "192.168.1.6"});
  const v1::NodePlan plan = PlanOf(&kit, kit.Spec(2, 2), {"a", "b"}, 1);
  const std::map<std::string, std::string> expected = {
      {"RANK", "3"},
      {"LOCAL_RANK", "1"},
      {"ROLE_RANK", "3"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_NAME", "default"},
      {"ROLE_WORLD_SIZE", "4"},
      {"MASTER_ADDR", "192.168.1.5"},
      {"MASTER_PORT", "40001"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RUN_ID", "abcdef-1"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "4"},
      {"DGXRUN_JOB_ID", "abcdef-1"},
      {"DGXRUN_ATTEMPT", "0"},
      {"DGXRUN_NODE", "b"},
  };
  EXPECT_EQ(Env(plan, 1), expected);
  EXPECT_EQ(plan.held_port(), 0u) << "the port is held where rank 0 is";
}

TEST(Plan, CallersChoicesStand) {
  CoreKit kit;
  kit.contacts.config.nccl = {{"NCCL_DEBUG", "WARN"}, {"NCCL_SOCKET_IFNAME", "eth0"}};
  kit.Connect({"a", 2});
  v1::JobSpec spec = kit.Spec(1, 2);
  for (const char* name :
       {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_DEBUG"}) {
    spec.add_env_names(name);
  }
  const auto env = Env(PlanOf(&kit, spec, {"a"}, 0));
  EXPECT_EQ(env.count("OMP_NUM_THREADS"), 0u);
  EXPECT_EQ(env.count("CUDA_VISIBLE_DEVICES"), 0u);
  EXPECT_EQ(env.count("TORCH_NCCL_ASYNC_ERROR_HANDLING"), 0u);
  EXPECT_EQ(env.count("NCCL_DEBUG"), 0u);
  EXPECT_EQ(env.at("NCCL_SOCKET_IFNAME"), "eth0");
}

TEST(Plan, Gpus) {
  CoreKit kit;
  kit.Connect({"a", 4});
  const v1::NodePlan plan = PlanOf(&kit, kit.Spec(1, 2), {"a"}, 0);
  EXPECT_EQ(Env(plan).at("CUDA_VISIBLE_DEVICES"), "GPU-a-0,GPU-a-1");
  EXPECT_EQ(Env(plan).at("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(plan.held_port(), 40001u);
  v1::JobSpec cpu = kit.Spec(1, 2);
  cpu.set_device(v1::DEVICE_CPU);
  EXPECT_EQ(Env(PlanOf(&kit, cpu, {"a"}, 0)).at("CUDA_VISIBLE_DEVICES"), "") << "others may hold the GPUs";
}

TEST(Plan, Resume) {
  CoreKit kit;
  kit.Connect({"a"});
  v1::JobSpec spec = kit.Spec(1, 1);
  spec.add_resume_args("--resume");
  spec.add_resume_args("path={},{}");
  spec.add_resume_args("{step}");
  EXPECT_THAT(PlanOf(&kit, spec, {"a"}, 0).argv(), ElementsAre("python3", "train.py"));
  const v1::NodePlan plan = PlanOf(&kit, spec, {"a"}, 0, 7);
  EXPECT_THAT(plan.argv(), ElementsAre("python3", "train.py", "--resume", "path=/ckpt/7,/ckpt/7", "7"));
  EXPECT_EQ(Env(plan).at("DGXRUN_RESUME_FROM"), "/ckpt/7");
  EXPECT_EQ(Env(plan).at("DGXRUN_RESUME_STEP"), "7");
}

TEST(Plan, MasterAddressIsNeverLoopbackUnlessAllAreOnOneMachine) {
  struct Case {
    std::string peer_a, boot_a, peer_b, boot_b, expected;
  };
  const Case cases[] = {
      {"", "x", "127.0.0.1", "x", "127.0.0.1"},        {"127.0.0.1", "x", "::1", "x", "127.0.0.1"},
      {"127.0.0.1", "x", "10.1.1.2", "y", "10.0.0.1"},  // the node's own first address
      {"10.1.1.1", "x", "127.0.0.1", "y", "10.1.1.1"}, {"", "x", "", "y", "10.0.0.1"},
      {"10.1.1.1", "x", "10.1.1.2", "x", "10.1.1.1"},
  };
  for (const Case& c : cases) {
    CoreKit kit;
    kit.Connect({"a", 0, c.peer_a, c.boot_a});
    kit.Connect({"b", 0, c.peer_b, c.boot_b});
    EXPECT_EQ(Env(PlanOf(&kit, kit.Spec(2, 1), {"a", "b"}, 0)).at("MASTER_ADDR"), c.expected);
  }
}

TEST(Placement, NaturalOrder) {
  EXPECT_TRUE(NaturalLess("dgx-9", "dgx-10"));
  EXPECT_FALSE(NaturalLess("dgx-10", "dgx-9"));
  EXPECT_TRUE(NaturalLess("dgx-09", "dgx-10"));
  EXPECT_TRUE(NaturalLess("a", "a1"));
  EXPECT_TRUE(NaturalLess("a2b10", "a10b2"));
  EXPECT_FALSE(NaturalLess("a", "a"));
}

}  // namespace
}  // namespace dgxrun::core
