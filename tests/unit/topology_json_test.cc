#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/topo_json.h"
#include "launcher/binding/plan_binding.h"
#include "tests/unit/topology_kit.h"

namespace dgxrun {
namespace {

using Json = nlohmann::json;

v1::NodeTopology TwoGpus() {
  v1::NodeTopology topology = MakeMachine(2, 1, 2);
  topology.set_source("a.xml");
  AddGpu(0, 0, &topology);
  AddGpu(1, 1, &topology)->clear_uuid();
  AddNic(0, 0, &topology);
  Link({0, 1}, 18, &topology);
  topology.add_notes("odd \xff");
  return topology;
}

TEST(TopoJson, Topology) {
  const Json json = Json::parse(cli::TopologyJson(TwoGpus()));
  EXPECT_EQ(json["source"], "a.xml");
  EXPECT_EQ(json["allowed_cpus"], "0-7");
  EXPECT_EQ(json["numa"][1]["cpus"], "2-3,6-7");
  EXPECT_EQ(json["numa"][1]["kind"], "cpu");
  EXPECT_EQ(json["gpus"][0]["to_gpus"], Json::parse(R"(["X", "NV18"])"));
  EXPECT_EQ(json["gpus"][0]["to_nics"], Json::parse(R"(["PIX"])"));
  EXPECT_EQ(json["gpus"][1]["to_nics"], Json::parse(R"(["SYS"])"));
  EXPECT_EQ(json["gpus"][1]["uuid"], nullptr);
  EXPECT_EQ(json["gpus"][1]["numa"], 1);
  EXPECT_EQ(json["nics"][0]["ports"][0]["active"], true);
  EXPECT_EQ(json["nics"][0]["ports"][0]["link_layer"], "InfiniBand");
}

TEST(TopoJson, UnknownIsNull) {
  v1::NodeTopology topology = TwoGpus();
  topology.mutable_gpus(0)->clear_locality();
  topology.mutable_nics(0)->mutable_ports(0)->Clear();
  const Json json = Json::parse(cli::TopologyJson(topology));
  EXPECT_EQ(json["gpus"][0]["numa"], nullptr);
  EXPECT_EQ(json["nics"][0]["ports"][0]["active"], nullptr);
  EXPECT_EQ(json["nics"][0]["ports"][0]["rate_mbps"], nullptr);
  EXPECT_EQ(json["nics"][0]["ports"][0]["link_layer"], nullptr);
}

TEST(TopoJson, Binding) {
  BindingRequest request;
  request.ranks = request.gpus.count = 2;
  const absl::StatusOr<v1::NodeBinding> binding = PlanBinding(TwoGpus(), request);
  ASSERT_TRUE(binding.ok()) << binding.status();
  const Json json = Json::parse(cli::BindingJson(*binding));
  EXPECT_EQ(json["ranks"][1]["local_rank"], 1);
  EXPECT_EQ(json["ranks"][1]["cpus"], "2-3,6-7");
  EXPECT_EQ(json["ranks"][1]["memory_policy"], "prefer");
  EXPECT_EQ(json["ranks"][1]["nearness"], "local");
  EXPECT_EQ(json["ranks"][1]["nic_path"], "SYS");
  EXPECT_EQ(json["visible_devices"], Json::parse(R"(["GPU-00001111-0000", "1"])"));
  request.bind = Bind::kNone;
  const Json unbound = Json::parse(cli::BindingJson(*PlanBinding(TwoGpus(), request)));
  EXPECT_EQ(unbound["ranks"][0]["cpus"], nullptr);
  EXPECT_EQ(unbound["ranks"][0]["nearness"], "not_bound");
}

}  // namespace
}  // namespace dgxrun
