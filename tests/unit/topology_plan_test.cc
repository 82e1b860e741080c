// The planner on machines made up for one question each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/binding/choose_gpus.h"
#include "launcher/binding/cpu_list.h"
#include "launcher/binding/deal_nics.h"
#include "launcher/binding/path_class.h"
#include "launcher/binding/plan_binding.h"
#include "launcher/binding/render.h"
#include "tests/unit/topology_kit.h"

namespace dgxrun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::NodeBinding Planned(const v1::NodeTopology& topology, const BindingRequest& request) {
  const absl::StatusOr<v1::NodeBinding> binding = PlanBinding(topology, request);
  EXPECT_TRUE(binding.ok()) << binding.status();
  return binding.ok() ? *binding : v1::NodeBinding();
}

BindingRequest Gpus(uint32_t count) {
  BindingRequest request;
  request.ranks = count;
  request.gpus.count = count;
  return request;
}

std::vector<std::string> Cpus(const v1::NodeBinding& binding) {
  std::vector<std::string> cpus;
  for (const v1::RankBinding& rank : binding.ranks()) cpus.push_back(rank.cpus());
  return cpus;
}

std::vector<uint32_t> GpusOf(const v1::NodeBinding& binding) {
  std::vector<uint32_t> gpus;
  for (const v1::RankBinding& rank : binding.ranks())
    gpus.insert(gpus.end(), rank.gpus().begin(), rank.gpus().end());
  return gpus;
}

std::vector<std::string> NicsOf(const v1::NodeBinding& binding) {
  std::vector<std::string> nics;
  for (const v1::RankBinding& rank : binding.ranks()) nics.push_back(rank.nics().empty() ? "" : rank.nics(0));
  return nics;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Two sockets of two NUMA nodes of 4 cores, two GPUs on nodes 1 and 2, two rails on each of their switches.
v1::NodeTopology FourGpus() {
  v1::NodeTopology topology = MakeMachine(2, 2, 4);
  for (uint32_t numa : {1u, 1u, 2u, 2u}) AddGpu(numa, numa, &topology);
  for (uint32_t numa : {1u, 1u, 2u, 2u}) AddNic(numa, numa, &topology);
  return topology;
}

// ---- lists

TEST(CpuLists, ReadAndWrite) {
  EXPECT_THAT(*ParseCpuList(" 8, 0-2,2-3\n"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_EQ(FormatCpuList({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_THAT(*ParseCpuList(""), IsEmpty());
  EXPECT_EQ(FormatCpuList({}), "");
  for (const char* wrong : {"3-1", "a", "1,,2", "-1", "0-99999999", "1-2-3", "0x3"}) {
    EXPECT_FALSE(ParseCpuList(wrong).ok()) << wrong;
  }
}

// ---- paths

TEST(Paths, AreThoseOfNvidiaSmi) {
  const auto path = [](uint32_t host, const std::vector<uint64_t>& bridges) {
    v1::PciPath p;
    p.set_host_bridge(host);
    p.mutable_bridges()->Add(bridges.begin(), bridges.end());
    return p;
  };
  const auto at = [](uint32_t numa) {
    v1::Locality locality;
    locality.set_numa(numa);
    return locality;
  };
  const v1::PciPath gpu = path(0, {1, 2, 3});
  EXPECT_EQ(PathBetween(gpu, at(0), path(0, {1, 2, 4}), at(0)), v1::PATH_CLASS_PIX);
  EXPECT_EQ(PathBetween(gpu, at(0), path(0, {1, 2}), at(0)), v1::PATH_CLASS_PIX);
  EXPECT_EQ(PathBetween(gpu, at(0), path(0, {1, 2, 4, 5, 6}), at(0)), v1::PATH_CLASS_PXB);
  EXPECT_EQ(PathBetween(gpu, at(0), path(0, {9, 2, 3}), at(0)), v1::PATH_CLASS_PHB);
  EXPECT_EQ(PathBetween(gpu, at(0), path(1, {1, 2, 3}), at(0)), v1::PATH_CLASS_NODE);
  EXPECT_EQ(PathBetween(gpu, at(0), path(1, {1, 2, 3}), at(1)), v1::PATH_CLASS_SYS);
  EXPECT_EQ(PathBetween(gpu, v1::Locality(), path(1, {1}), v1::Locality()), v1::PATH_CLASS_SYS);
}

// ---- cores and memory

TEST(Cores, AreSplitBetweenAllGpusOfTheNodeUsedOrNot) {
  const v1::NodeTopology topology = FourGpus();
  EXPECT_THAT(Cpus(Planned(topology, Gpus(4))),
              ElementsAre("4-5,20-21", "6-7,22-23", "8-9,24-25", "10-11,26-27"));
  BindingRequest second;
  second.gpus.indices = {1};
  EXPECT_THAT(Cpus(Planned(topology, second)), ElementsAre("6-7,22-23"));
  second.cpu_share = CpuShare::kJob;
  EXPECT_THAT(Cpus(Planned(topology, second)), ElementsAre("4-7,20-23"));
}

TEST(Cores, PackageShareAddsTheNodesWithoutGpus) {
  BindingRequest request = Gpus(4);
  request.cpu_share = CpuShare::kPackage;
  const v1::NodeBinding binding = Planned(FourGpus(), request);
  EXPECT_THAT(Cpus(binding), ElementsAre("0-1,4-5,16-17,20-21", "2-3,6-7,18-19,22-23",
                                         "8-9,12-13,24-25,28-29", "10-11,14-15,26-27,30-31"));
  EXPECT_EQ(binding.ranks(0).mems(), "1") << "memory stays beside the GPU";
}

TEST(Cores, BindModes) {
  const v1::NodeTopology topology = FourGpus();
  BindingRequest request = Gpus(4);
  request.bind = Bind::kNuma;
  EXPECT_THAT(Cpus(Planned(topology, request)),
              ElementsAre("4-7,20-23", "4-7,20-23", "8-11,24-27", "8-11,24-27"));
  EXPECT_EQ(Planned(topology, request).ranks(0).omp_threads(), 2u) << "its share of the node, not all of it";
  request.bind = Bind::kSocket;
  EXPECT_EQ(Cpus(Planned(topology, request))[0], "0-7,16-23");
  EXPECT_EQ(Planned(topology, request).ranks(0).mems(), "0-1");
  request.bind = Bind::kNone;
  const v1::NodeBinding none = Planned(topology, request);
  EXPECT_EQ(none.ranks(0).cpus(), "");
  EXPECT_EQ(none.ranks(0).memory_policy(), v1::MEMORY_POLICY_UNSPECIFIED);
  EXPECT_EQ(none.ranks(0).omp_threads(), 4u);
  EXPECT_EQ(none.ranks(0).nics_size(), 1);
}

TEST(Cores, AHalfCoreCountsAsOneAndIsSaid) {
  v1::NodeTopology topology = FourGpus();
  topology.set_allowed_cpus("4-7,20,8-11");
  const v1::NodeBinding binding = Planned(topology, Gpus(4));
  EXPECT_THAT(Cpus(binding), ElementsAre("4-5,20", "6-7", "8-9", "10-11"));
  EXPECT_THAT(binding.ranks(0).notes(), ElementsAre(HasSubstr("1 of its 2 cores in part only")));
}

TEST(Cores, LadderPackageThenNearestThenAny) {
  v1::NodeTopology topology = FourGpus();
  topology.set_allowed_cpus("0-3");  // node 0 only: the package of GPU 0 and 1, another of GPU 2 and 3
  v1::NodeBinding binding = Planned(topology, Gpus(4));
  EXPECT_THAT(Cpus(binding), ElementsAre("0", "1", "2", "3"));
  EXPECT_EQ(binding.ranks(0).nearness(), v1::NEARNESS_PACKAGE);
  EXPECT_EQ(binding.ranks(2).nearness(), v1::NEARNESS_NEAREST);
  EXPECT_THAT(
      binding.warnings(),
      ElementsAre(
          "GPU 0-1: no allowed core to spare on NUMA 1; cores of NUMA 0, in its socket",
          "GPU 2-3: no allowed core to spare on NUMA 2; cores of NUMA 0, the nearest of another socket"));
  for (v1::NumaNode& numa : *topology.mutable_numa()) numa.clear_distances();
  binding = Planned(topology, Gpus(4));
  EXPECT_EQ(binding.ranks(2).nearness(), v1::NEARNESS_ANY);
}

TEST(Cores, NearestIsByTheTableNotByNumber) {
  v1::NodeTopology topology = MakeMachine(3, 1, 4);
  AddGpu(0, 0, &topology);
  topology.set_allowed_cpus("4-11");
  topology.mutable_numa(0)->set_distances(1, 40);
  topology.mutable_numa(0)->set_distances(2, 20);
  EXPECT_THAT(Cpus(Planned(topology, Gpus(1))), ElementsAre("8-11"));
}

TEST(Cores, ANodeTakesNoMoreUnitsThanItHasCoresWhileOthersHave) {
  v1::NodeTopology topology = FourGpus();
  topology.set_allowed_cpus("4,0-3,8-11");  // one core on node 1, two GPUs there
  const v1::NodeBinding binding = Planned(topology, Gpus(4));
  EXPECT_THAT(Cpus(binding), ElementsAre("4", "0-3", "8-9", "10-11"));
}

TEST(Cores, AreSharedOnlyWhenThereAreTooFew) {
  v1::NodeTopology topology = FourGpus();
  topology.set_allowed_cpus("4,5");
  const v1::NodeBinding binding = Planned(topology, Gpus(4));
  EXPECT_THAT(Cpus(binding), ElementsAre("4", "4", "5", "5"));
  EXPECT_THAT(binding.ranks(0).notes(),
              testing::Contains("there are fewer cores than ranks: 2 ranks share one"));
}

TEST(Cores, AGpuOnOneL3GetsTheCoresThere) {
  v1::NodeTopology topology = MakeMachine(1, 1, 8);
  AddGpu(0, 0, &topology)->mutable_locality()->set_cpus("4-7");
  AddGpu(0, 1, &topology)->mutable_locality()->set_cpus("0-3");
  EXPECT_THAT(Cpus(Planned(topology, Gpus(2))), ElementsAre("4-7,12-15", "0-3,8-11"));
}

TEST(Cores, UnknownPlaces) {
  v1::NodeTopology topology = MakeMachine(2, 1, 4);
  AddGpu(0, 0, &topology)->clear_locality();
  AddGpu(0, 1, &topology)->clear_locality();
  const v1::NodeBinding binding = Planned(topology, Gpus(2));
  EXPECT_THAT(Cpus(binding), ElementsAre("0-3,8-11", "4-7,12-15")) << "spread, not heaped";
  EXPECT_THAT(binding.warnings(),
              ElementsAre("GPU 0-1: where it is, is not known; cores of NUMA 0-1, perhaps far"));
  v1::NodeTopology one_node = MakeMachine(1, 1, 4);
  AddGpu(0, 0, &one_node)->clear_locality();
  EXPECT_THAT(Planned(one_node, Gpus(1)).warnings(), IsEmpty()) << "there is only one place";
}

TEST(Cores, StrictRefusesWhatIsNotLocal) {
  v1::NodeTopology topology = FourGpus();
  BindingRequest request = Gpus(4);
  request.strict = true;
  EXPECT_TRUE(PlanBinding(topology, request).ok());
  topology.set_allowed_cpus("0-7");
  const absl::Status status = PlanBinding(topology, request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), HasSubstr("GPU 2-3: no allowed core to spare on NUMA 2"));
}

TEST(Cores, NoneAllowedIsAnError) {
  v1::NodeTopology topology = FourGpus();
  topology.set_allowed_cpus("");
  EXPECT_EQ(PlanBinding(topology, Gpus(4)).status().code(), absl::StatusCode::kFailedPrecondition);
  topology.set_allowed_cpus("900-910");
  EXPECT_THAT(Message(PlanBinding(topology, Gpus(4)).status()), HasSubstr("900-910"));
}

TEST(Cores, RanksWithoutGpusGoOverAllNodes) {
  BindingRequest request;
  request.ranks = 3;
  v1::NodeTopology topology = MakeMachine(2, 1, 4);
  topology.set_allowed_cpus("0-3,4-5");
  EXPECT_THAT(Cpus(Planned(topology, request)), ElementsAre("0-1", "2-3", "4-5"));
}

TEST(Cores, MoreRanksThanGpusShareTheirCoresAndFewerGetSeveralGpus) {
  const v1::NodeTopology topology = FourGpus();
  BindingRequest request = Gpus(4);
  request.ranks = 8;
  const v1::NodeBinding many = Planned(topology, request);
  EXPECT_THAT(Cpus(many), ElementsAre("4,20", "6,22", "8,24", "10,26", "5,21", "7,23", "9,25", "11,27"));
  EXPECT_THAT(GpusOf(many), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  request.ranks = 1;
  const v1::NodeBinding one = Planned(topology, request);
  EXPECT_THAT(GpusOf(one), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Cpus(one), ElementsAre("4-11,20-27"));
  EXPECT_EQ(one.ranks(0).mems(), "1-2");
  EXPECT_EQ(one.ranks(0).nics_size(), 4);
}

TEST(Memory, Policies) {
  v1::NodeTopology topology = FourGpus();
  BindingRequest request = Gpus(4);
  EXPECT_EQ(Planned(topology, request).ranks(0).memory_policy(), v1::MEMORY_POLICY_PREFER);
  request.membind = Membind::kStrict;
  EXPECT_EQ(Planned(topology, request).ranks(0).memory_policy(), v1::MEMORY_POLICY_BIND);
  EXPECT_EQ(Planned(topology, request).ranks(0).mems(), "1");
  request.membind = Membind::kNone;
  EXPECT_EQ(Planned(topology, request).ranks(0).mems(), "");
}

TEST(Memory, ThatIsNotAllowedIsNotAskedFor) {
  v1::NodeTopology topology = FourGpus();
  topology.set_allowed_mems("0,2");
  const v1::NodeBinding binding = Planned(topology, Gpus(4));
  EXPECT_EQ(binding.ranks(0).memory_policy(), v1::MEMORY_POLICY_UNSPECIFIED);
  EXPECT_THAT(binding.ranks(0).notes(),
              ElementsAre("no memory policy: memory of NUMA 1 is not allowed, only of 0,2"));
  EXPECT_EQ(binding.ranks(2).mems(), "2");
}

TEST(Threads, FollowTheCores) {
  v1::NodeTopology topology = MakeMachine(1, 1, 56);
  AddGpu(0, 0, &topology);
  AddGpu(0, 0, &topology);
  const v1::NodeBinding binding = Planned(topology, Gpus(2));
  EXPECT_EQ(binding.ranks(0).omp_threads(), 28u);
  EXPECT_EQ(binding.ranks(0).loader_workers(), 16u);
}

// ---- which GPUs

TEST(Choice, ByLinksThenSwitchThenNuma) {
  v1::NodeTopology topology = MakeMachine(2, 1, 8);
  for (uint32_t i = 0; i < 8; ++i) AddGpu(i / 4, i / 2, &topology);
  EXPECT_THAT(GpusOf(Planned(topology, Gpus(2))), ElementsAre(0, 1)) << "one switch";
  BindingRequest busy = Gpus(2);
  busy.gpus.occupied = {0};
  EXPECT_THAT(GpusOf(Planned(topology, busy)), ElementsAre(2, 3)) << "not 1 and 2, which share no switch";
  busy = Gpus(1);
  busy.gpus.occupied = {4};
  EXPECT_THAT(GpusOf(Planned(topology, busy)), ElementsAre(5)) << "its neighbour is taken: pairs stay whole";
  busy = Gpus(3);
  busy.gpus.occupied = {0, 2};
  EXPECT_THAT(GpusOf(Planned(topology, busy)), ElementsAre(4, 5, 6)) << "one socket";
  Link({2, 5, 7}, 4, &topology);
  EXPECT_THAT(GpusOf(Planned(topology, Gpus(2))), ElementsAre(5, 7)) << "links, and of these one socket";
  EXPECT_THAT(GpusOf(Planned(topology, Gpus(3))), ElementsAre(2, 5, 7));
}

TEST(Choice, TooFewAreFree) {
  BindingRequest request = Gpus(3);
  request.gpus.occupied = {0, 3};
  const absl::Status status = PlanBinding(FourGpus(), request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(status), "asked for 3 GPUs; 2 of 4 are free");
}

TEST(Choice, ManyUnitsDoNotTakeForEver) {
  v1::NodeTopology topology = MakeMachine(2, 1, 64);
  for (uint32_t i = 0; i < 8; ++i) {
    v1::GpuPlace* gpu = AddGpu(i / 4, i, &topology);
    for (int p = 0; p < 7; ++p) gpu->add_partitions()->set_uuid(absl::StrCat("MIG-", i, "-", p));
  }
  const v1::NodeBinding binding = Planned(topology, Gpus(28));
  EXPECT_EQ(binding.ranks_size(), 28);
  const v1::NodeBinding seven = Planned(topology, Gpus(7));
  for (const v1::RankBinding& rank : seven.ranks()) EXPECT_EQ(rank.gpus(0), seven.ranks(0).gpus(0));
}

TEST(Visible, IndexesUuidsAndMig) {
  v1::NodeTopology topology = FourGpus();
  BindingRequest request;
  request.ranks = 2;
  request.gpus.visible = "3,1";
  EXPECT_THAT(GpusOf(Planned(topology, request)), ElementsAre(3, 1)) << "local rank i uses entry i";
  request.gpus.visible = "GPU-00004444, GPU-00002222-0000";
  EXPECT_THAT(GpusOf(Planned(topology, request)), ElementsAre(3, 1));
  EXPECT_THAT(Planned(topology, request).visible_devices(),
              ElementsAre("GPU-00004444-0000", "GPU-00002222-0000"));
  request.gpus.visible = "2,-1,0";
  request.ranks = 1;
  EXPECT_THAT(GpusOf(Planned(topology, request)), ElementsAre(2)) << "CUDA stops at -1";
  topology.mutable_gpus(1)->add_partitions()->set_uuid("MIG-aaaa");
  topology.mutable_gpus(1)->add_partitions()->set_uuid("MIG-bbbb");
  request.ranks = 2;
  request.gpus.visible = "MIG-bbbb,0";
  const v1::NodeBinding mig = Planned(topology, request);
  EXPECT_THAT(mig.visible_devices(), ElementsAre("MIG-bbbb", "GPU-00001111-0000"));
  EXPECT_EQ(mig.ranks(0).cpus(), "7,23") << "four cores for three units";
}

// NVIDIA-NeMo/RL#2613: everybody took the first of the list.
TEST(Visible, AFullListGivesEachRankItsOwn) {
  v1::NodeTopology topology = FourGpus();
  BindingRequest by_index = Gpus(4);
  by_index.gpus.visible = "0,1,2,3";
  BindingRequest by_uuid = Gpus(4);
  by_uuid.gpus.visible = "GPU-00001111-0000,GPU-00002222-0000,GPU-00003333-0000,GPU-00004444-0000";
  EXPECT_EQ(Planned(topology, by_index).SerializeAsString(), Planned(topology, by_uuid).SerializeAsString());
  EXPECT_EQ(Cpus(Planned(topology, by_index))[3], "10-11,26-27");
}

TEST(Visible, Errors) {
  const v1::NodeTopology topology = FourGpus();
  const auto refused = [&](const char* visible, uint32_t count) {
    BindingRequest request = Gpus(count);
    request.gpus.visible = visible;
    return PlanBinding(topology, request).status();
  };
  EXPECT_THAT(Message(refused("0,7", 2)),
              HasSubstr("there is no device \"7\" here; there are GPU-00001111-0000"));
  EXPECT_THAT(Message(refused("0,0", 2)), HasSubstr("named twice"));
  EXPECT_THAT(Message(refused("GPU-0000", 1)), HasSubstr("may be any of 4"));
  EXPECT_EQ(refused("0,1", 3).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused("", 0).code(), absl::StatusCode::kInvalidArgument) << "no ranks";
  BindingRequest none;
  none.gpus.visible = "-1";
  EXPECT_EQ(PlanBinding(topology, none).status().code(), absl::StatusCode::kNotFound);
  BindingRequest held;
  held.gpus.indices = {2};
  held.gpus.occupied = {2};
  EXPECT_EQ(PlanBinding(topology, held).status().code(), absl::StatusCode::kFailedPrecondition);
}

// ---- network cards

TEST(Nics, AreDealtNotHeaped) {
  EXPECT_THAT(NicsOf(Planned(FourGpus(), Gpus(4))), ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"));
}

TEST(Nics, AGpuWithoutOneTakesFromItsSocketFirst) {
  v1::NodeTopology topology = MakeMachine(2, 2, 4);
  for (uint32_t numa = 0; numa < 4; ++numa) AddGpu(numa, numa, &topology);
  AddNic(3, 3, &topology);
  AddNic(0, 0, &topology);
  EXPECT_THAT(NicsOf(Planned(topology, Gpus(4))), ElementsAre("mlx5_1", "mlx5_1", "mlx5_0", "mlx5_0"));
}

TEST(Nics, AsManyAsPossibleHaveANearOne) {
  // GPU 0 reaches both at PIX, GPU 1 only the first: GPU 0 must give it up.
  v1::NodeTopology topology = MakeMachine(2, 1, 4);
  AddGpu(0, 0, &topology);
  AddGpu(0, 0, &topology);
  AddNic(0, 0, &topology);
  AddNic(0, 0, &topology);
  topology.mutable_nics(1)->mutable_path()->set_bridges(1,
                                                        77 << 8);  // another switch below the same root port
  topology.mutable_gpus(0)->mutable_path()->mutable_bridges()->Truncate(1);
  topology.mutable_gpus(0)->mutable_path()->add_bridges(77 << 8);
  const absl::StatusOr<NicDeal> deal = DealNics(topology, {});
  ASSERT_TRUE(deal.ok());
  EXPECT_THAT(deal->hands[0].nics, ElementsAre("mlx5_1"));
  EXPECT_THAT(deal->hands[1].nics, ElementsAre("mlx5_0"));
}

TEST(Nics, ManagementStorageAndDownPortsAreNoRails) {
  v1::NodeTopology topology = FourGpus();
  v1::NicPlace* management = AddNic(1, 1, &topology);
  management->mutable_ports(0)->set_rate_mbps(25000);
  management->mutable_ports(0)->set_link_layer(v1::LINK_LAYER_ETHERNET);
  AddNic(2, 2, &topology)->set_never_a_rail(true);
  topology.mutable_nics(1)->mutable_ports(0)->set_state(v1::PORT_STATE_DOWN);
  const v1::NodeBinding binding = Planned(topology, Gpus(4));
  EXPECT_THAT(NicsOf(binding), ElementsAre("mlx5_0", "mlx5_0", "mlx5_2", "mlx5_3"));
}

TEST(Nics, OneFastCardIsNotTheFabric) {
  v1::NodeTopology topology = FourGpus();
  AddNic(0, 9, &topology)->mutable_ports(0)->set_rate_mbps(800000);
  EXPECT_THAT(NicsOf(Planned(topology, Gpus(4))), ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"));
}

TEST(Nics, TwoForEachGpu) {
  v1::NodeTopology topology = MakeMachine(2, 1, 4);
  AddGpu(0, 0, &topology);
  AddGpu(1, 1, &topology);
  for (uint32_t numa : {0u, 0u, 1u, 1u}) AddNic(numa, numa, &topology);
  const v1::NodeBinding binding = Planned(topology, Gpus(2));
  EXPECT_THAT(binding.ranks(0).nics(), ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_THAT(binding.ranks(1).nics(), ElementsAre("mlx5_2", "mlx5_3"));
}

TEST(Nics, TheCallersChoiceWinsAndIsChecked) {
  BindingRequest request = Gpus(4);
  request.nics = {"mlx5_3:1", "mlx5_0"};
  EXPECT_THAT(NicsOf(Planned(FourGpus(), request)), ElementsAre("mlx5_0", "mlx5_0", "mlx5_3", "mlx5_3"));
  request.nics = {"ib2"};
  EXPECT_THAT(Message(PlanBinding(FourGpus(), request).status()),
              HasSubstr("there is no RDMA device \"ib2\" here (ib2 is mlx5_2); there are mlx5_0"));
  request.nics = {"mlx5_1"};
  v1::NodeTopology topology = FourGpus();
  topology.mutable_nics(1)->mutable_ports(0)->set_state(v1::PORT_STATE_DOWN);
  EXPECT_THAT(Planned(topology, request).warnings(),
              testing::Contains("mlx5_1 was asked for, and its port is down"));
}

// ---- text

TEST(Text, OfASmallMachine) {
  v1::NodeTopology topology = MakeMachine(2, 1, 2);
  AddGpu(0, 0, &topology)->set_memory_node(5);
  AddGpu(1, 1, &topology);
  AddNic(0, 0, &topology);
  Link({0, 1}, 12, &topology);
  v1::NumaNode* memory = topology.add_numa();
  memory->set_id(5);
  memory->set_kind(v1::NUMA_KIND_GPU_MEMORY);
  memory->set_memory_bytes(uint64_t{96} << 30);
  EXPECT_EQ(TopologyText(topology),
            "packages 2, NUMA nodes 3, GPUs 2, RDMA devices 1\n"
            "CPUs allowed 0-7; memory of NUMA 0-1\n"
            "\n"
            "NUMA  package  cores  CPUs     allowed  memory\n"
            "0     0        2      0-1,4-5  all      -\n"
            "1     1        2      2-3,6-7  all      -\n"
            "5     0        -      -        -        96 GiB  memory of GPU0\n"
            "\n"
            "      GPU0  GPU1  NIC0  NUMA  CPUs     own memory\n"
            "GPU0  X     NV12  PIX   0     0-1,4-5  5\n"
            "GPU1  NV12  X     SYS*  1     2-3,6-7  -\n"
            "NIC0  PIX   SYS*  X     0\n"
            "\n"
            "GPU0  0000:10:00.0  -             GPU-00001111-0000\n"
            "GPU1  0000:11:00.0  -             GPU-00002222-0000\n"
            "NIC0  0000:80:00.0  mlx5_0 (ib0)  port 1 active InfiniBand 400 Gb/s\n"
            "\n"
            "X self, NV# that many NVLinks, PIX one PCIe switch, PXB several, PHB a host bridge, NODE within "
            "a NUMA node,\n"
            "SYS between NUMA nodes; * between sockets, ? not known\n");
}

TEST(Words, AreTheOptions) {
  EXPECT_EQ(*ParseBind("socket"), Bind::kSocket);
  EXPECT_EQ(*ParseCpuShare("package"), CpuShare::kPackage);
  EXPECT_EQ(*ParseMembind("strict"), Membind::kStrict);
  EXPECT_EQ(Message(ParseBind("cores").status()), "\"cores\" is none of core, numa, socket, none");
}

}  // namespace
}  // namespace dgxrun
