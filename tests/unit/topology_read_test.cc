// Reading topologies: small XML of our own, the override file, the driver's list, a fake sysfs, this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "launcher/binding/cpu_list.h"
#include "launcher/binding/plan_binding.h"
#include "launcher/topology/merge_driver.h"
#include "launcher/topology/overrides.h"
#include "launcher/topology/rdma_ports.h"
#include "launcher/topology/read_topology.h"
#include "tests/unit/topology_kit.h"

namespace dgxrun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// ---- XML as hwloc 2 writes it

std::string Pci(int bus, const std::string& kind, const std::string& inner) {
  return absl::StrFormat(
      "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:00.0\" pci_type=\"%s [0000:0000] 00\" "
      "pci_link_speed=\"31.5\">%s</object>",
      900 + bus, bus, kind, inner);
}

std::string OsDevice(int index, int type, const std::string& name, const std::string& subtype,
                     const std::string& infos) {
  return absl::StrCat("<object type=\"OSDev\" gp_index=\"", 2000 + index, "\" name=\"", name, "\"",
                      subtype.empty() ? "" : absl::StrCat(" subtype=\"", subtype, "\""), " osdev_type=\"",
                      type, "\">", infos, "</object>");
}

std::string Info(const std::string& name, const std::string& value) {
  return absl::StrCat("<info name=\"", name, "\" value=\"", value, "\"/>");
}

// Two sockets of one NUMA node with two cores of one thread; `devices[s]` hang on a switch of socket s. NUMA
// 2, if `gpu_memory`, is the memory of the GPU at bus 10.
std::string Xml(const std::vector<std::string>& devices, bool gpu_memory = false) {
  const std::string nodes = gpu_memory ? "0x00000007" : "0x00000003";
  std::string text = absl::StrCat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
      "version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\" cpuset=\"0x0000000f\" "
      "complete_cpuset=\"0x0000000f\" "
      "allowed_cpuset=\"0x0000000f\" nodeset=\"",
      nodes, "\" complete_nodeset=\"", nodes, "\" allowed_nodeset=\"", nodes, "\" gp_index=\"1\">");
  for (int socket = 0; socket < 2; ++socket) {
    const std::string cpus = socket == 0 ? "0x00000003" : "0x0000000c";
    std::string node = socket == 0 ? "0x00000001" : "0x00000002";
    const auto sets = [&](const std::string& set, const std::string& nodeset) {
      return absl::StrCat(" cpuset=\"", set, "\" complete_cpuset=\"", set, "\" nodeset=\"", nodeset,
                          "\" complete_nodeset=\"", nodeset, "\"");
    };
    const bool with_memory = gpu_memory && socket == 0;
    const std::string all = with_memory ? "0x00000005" : node;
    absl::StrAppend(&text, "<object type=\"Package\" os_index=\"", socket, "\"", sets(cpus, all),
                    " gp_index=\"", 10 + socket, "\">", "<object type=\"NUMANode\" os_index=\"", socket, "\"",
                    sets(cpus, node), " gp_index=\"", 20 + socket, "\" local_memory=\"1073741824\"/>");
    if (with_memory) {
      absl::StrAppend(&text, "<object type=\"NUMANode\" subtype=\"GPUMemory\" os_index=\"2\"",
                      sets(cpus, "0x00000004"), " gp_index=\"29\" local_memory=\"1073741824\">",
                      Info("PCIBusID", "0000:0a:00.0"), "</object>");
    }
    for (int core = 2 * socket; core < 2 * socket + 2; ++core) {
      const std::string cpu = absl::StrFormat("0x%08x", 1 << core);
      absl::StrAppend(&text, "<object type=\"Core\" os_index=\"", core, "\"", sets(cpu, all), " gp_index=\"",
                      30 + core, "\"><object type=\"PU\" os_index=\"", core, "\"", sets(cpu, all),
                      " gp_index=\"", 40 + core, "\"/></object>");
    }
    if (static_cast<size_t>(socket) < devices.size()) {
      absl::StrAppend(
          &text, "<object type=\"Bridge\" gp_index=\"", 50 + socket,
          "\" bridge_type=\"0-1\" depth=\"0\" "
          "bridge_pci=\"0000:[",
          socket == 0 ? "00-7f" : "80-ff", "]\">",
          absl::StrFormat("<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"1-1\" depth=\"1\" "
                          "bridge_pci=\"0000:[%s]\" pci_busid=\"0000:%02x:01.0\" pci_type=\"0604 "
                          "[8086:0000] [0000:0000] 00\" pci_link_speed=\"31.5\">",
                          60 + socket, socket == 0 ? "01-7f" : "81-ff", socket * 128),
          devices[static_cast<size_t>(socket)], "</object></object>");
    }
    absl::StrAppend(&text, "</object>");
  }
  return absl::StrCat(text, "</object>\n</topology>\n");
}

const char kGpu[] = "0302 [10de:2330]";

v1::NodeTopology Parsed(const std::string& xml) {
  const absl::StatusOr<v1::NodeTopology> topology = ParseTopology(xml, "here.xml");
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *topology : v1::NodeTopology();
}

TEST(Xml, CoresNumaAndAllowedSets) {
  const v1::NodeTopology topology = Parsed(Xml({}));
  EXPECT_EQ(topology.source(), "here.xml");
  EXPECT_EQ(topology.packages(), 2u);
  ASSERT_EQ(topology.numa_size(), 2);
  EXPECT_EQ(topology.numa(1).cores_size(), 2);
  EXPECT_EQ(topology.numa(1).cores(0).cpus(0), 2u);
  EXPECT_EQ(topology.numa(1).package(), 1u);
  EXPECT_EQ(topology.allowed_cpus(), "0-3");
  EXPECT_EQ(topology.allowed_mems(), "0-1");
}

TEST(Xml, DecoysAreNoGpus) {
  const v1::NodeTopology topology = Parsed(Xml(
      {absl::StrCat(Pci(1, "0300 [1a03:2000]", OsDevice(1, 1, "card0", "", "")),       // a BMC's screen
                    Pci(2, "0300 [10de:1234]", OsDevice(2, 1, "card1", "", "")),       // a screen only
                    Pci(3, "0300 [10de:1b80]", OsDevice(3, 1, "renderD128", "", "")),  // GPU 0
                    Pci(4, "0680 [10de:22a3]", ""),                                    // an NVSwitch
                    Pci(5, "0b40 [8086:4940]", ""), Pci(6, "0403 [10de:0001]", "")),   // QAT; a GPU's audio
       absl::StrCat(Pci(0x90, kGpu, OsDevice(4, 1, "nvml1", "NVML", Info("NVIDIAUUID", "GPU-b"))),  // GPU 2
                    Pci(0x8f, kGpu, OsDevice(5, 1, "nvml0", "NVML", Info("NVIDIAUUID", "GPU-a"))))}));
  ASSERT_EQ(topology.gpus_size(), 3);
  EXPECT_EQ(topology.gpus(0).pci(), "0000:03:00.0");
  EXPECT_EQ(topology.gpus(1).pci(), "0000:8f:00.0") << "by PCI address, not by the runtime's number";
  EXPECT_EQ(topology.gpus(1).uuid(), "GPU-a");
  EXPECT_EQ(topology.gpus(1).locality().numa(), 1u);
  EXPECT_EQ(topology.gpus(0).path().bridges_size(), 1);
  EXPECT_NE(topology.gpus(0).path().host_bridge(), topology.gpus(1).path().host_bridge());
}

TEST(Xml, NetworkCards) {
  const v1::NodeTopology topology = Parsed(Xml(
      {absl::StrCat(Pci(1, "0207 [15b3:1021]",
                        absl::StrCat(OsDevice(1, 2, "ib0", "", ""),
                                     OsDevice(2, 3, "mlx5_10", "",
                                              absl::StrCat(Info("Port1State", "4"), Info("Port2State", "1"))),
                                     OsDevice(3, 3, "mlx5_9", "", Info("Port1State", "banana")))),
                    Pci(2, "0200 [8086:1533]", OsDevice(4, 2, "eno1", "", "")),
                    Pci(3, "0200 [17db:0501]", OsDevice(5, 2, "hsi0", "Slingshot", "")))}));
  ASSERT_EQ(topology.nics_size(), 3);
  EXPECT_EQ(topology.nics(0).name(), "mlx5_9");
  EXPECT_THAT(topology.nics(0).ports(), IsEmpty());
  EXPECT_EQ(topology.nics(1).name(), "mlx5_10");
  EXPECT_EQ(topology.nics(1).netdev(), "ib0");
  ASSERT_EQ(topology.nics(1).ports_size(), 2);
  EXPECT_EQ(topology.nics(1).ports(0).state(), v1::PORT_STATE_ACTIVE);
  EXPECT_EQ(topology.nics(1).ports(1).state(), v1::PORT_STATE_DOWN);
  EXPECT_EQ(topology.nics(1).ports(0).link_layer(), v1::LINK_LAYER_INFINIBAND);
  EXPECT_EQ(topology.nics(1).pci_mbps(), 252000u);
  EXPECT_EQ(topology.nics(2).name(), "hsi0");
  EXPECT_THAT(topology.netdevs(), ElementsAre("eno1"));
}

TEST(Xml, MemoryOfAGpu) {
  const v1::NodeTopology topology = Parsed(Xml({Pci(10, "0302 [10de:2342]", "")}, /*gpu_memory=*/true));
  ASSERT_EQ(topology.numa_size(), 3);
  EXPECT_EQ(topology.numa(2).kind(), v1::NUMA_KIND_GPU_MEMORY);
  ASSERT_EQ(topology.gpus_size(), 1);
  EXPECT_EQ(topology.gpus(0).memory_node(), 2u);
  EXPECT_EQ(topology.gpus(0).locality().numa(), 0u);
}

TEST(Xml, SameUuidsAreDropped) {
  const auto gpu = [](int bus) {
    return Pci(bus, kGpu, OsDevice(bus, 1, absl::StrCat("nvml", bus), "NVML", Info("NVIDIAUUID", "GPU-0")));
  };
  const v1::NodeTopology topology = Parsed(Xml({absl::StrCat(gpu(1), gpu(2))}));
  EXPECT_EQ(topology.gpus(0).uuid(), "");
  EXPECT_THAT(topology.notes(), ElementsAre(HasSubstr("same UUID")));
}

TEST(Xml, Restrict) {
  v1::NodeTopology topology = Parsed(Xml({}));
  EXPECT_TRUE(RestrictCpus("1-2,77", &topology).ok());
  EXPECT_EQ(topology.allowed_cpus(), "1-2");
  EXPECT_THAT(Message(RestrictCpus("0", &topology)), HasSubstr("allowed are 1-2"));
  EXPECT_FALSE(RestrictCpus("x", &topology).ok());
  EXPECT_EQ(topology.allowed_cpus(), "1-2");
}

// ---- what is not that

TEST(BadXml, SaysWhatItIs) {
  const std::string good = Xml({Pci(1, kGpu, "")});
  const auto refused = [](const std::string& text) {
    const absl::Status status = ParseTopology(text, "bad.xml").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), StartsWith("bad.xml: "));
    return Message(status);
  };
  EXPECT_THAT(
      refused(absl::StrReplaceAll(good, {{"version=\"2.0\"", "version=\"3.0\""}})),
      HasSubstr("this is of hwloc 3.0, and hwloc 2 reads it; write it with: lstopo --export-xml-flags v2"));
  EXPECT_THAT(refused("<system version=\"1\">\n<cpu numaid=\"0\"/></system>"),
              HasSubstr("NCCL's own topology"));
  EXPECT_THAT(refused("<?xml version=\"1.0\"?><!-- a > b --><svg/>"), HasSubstr("XML of <svg>"));
  EXPECT_THAT(refused(good.substr(0, good.size() / 2)), HasSubstr("cut short"));
  EXPECT_THAT(refused(good.substr(0, 20)), HasSubstr("no XML"));
  EXPECT_THAT(refused(absl::StrReplaceAll(good, {{"</object>\n</topology>", "</topology>"}})),
              HasSubstr("damaged"));
  EXPECT_THAT(refused("<topology version=\"2.0\"></topology>"), HasSubstr("damaged"));
  EXPECT_THAT(refused(""), HasSubstr("empty"));
  EXPECT_THAT(refused("{\"a\": 1}"), HasSubstr("no XML"));
  EXPECT_THAT(refused(std::string("<topology>\0</topology>", 22)), HasSubstr("no text"));
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "<object type=\"Group\">";
  for (int i = 0; i < 5000; ++i) deep += "</object>";
  EXPECT_THAT(refused(absl::StrCat("<topology version=\"2.0\">", deep, "</topology>")),
              HasSubstr("nested too deep"));
}

TEST(BadXml, AnEmptyCpuset) {
  const std::string none =
      absl::StrReplaceAll(Xml({}), {{"allowed_cpuset=\"0x0000000f\"", "allowed_cpuset=\"0x0\""}});
  const absl::StatusOr<v1::NodeTopology> topology = ParseTopology(none, "bad.xml");
  EXPECT_EQ(topology.status().code(), absl::StatusCode::kInvalidArgument) << topology.status();
}

TEST(BadXml, FilesThatAreNot) {
  EXPECT_EQ(ReadTopologyFile("/nonexistent.xml").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(ReadTopologyFile("/nonexistent.xml").status()), StartsWith("/nonexistent.xml: "));
  EXPECT_FALSE(ReadTopologyFile("/").ok());
  EXPECT_THAT(Message(ReadTopologyFile("/dev/zero").status()), HasSubstr("more than 16 MiB"));
}

// ---- the override file

v1::NodeTopology Machine() {
  v1::NodeTopology topology = MakeMachine(2, 1, 2);
  AddGpu(0, 0, &topology);
  AddGpu(0, 0, &topology);
  AddGpu(1, 1, &topology);
  AddNic(0, 0, &topology);
  Link({1, 2}, 4, &topology);
  return topology;
}

TEST(Overrides, MoveHideAndName) {
  v1::NodeTopology topology = Machine();
  const absl::Status status = ApplyOverrides(
      "[gpu.\"0000:10:00.0\"]\nuse = false\n[gpu.\"0000:11:00.0\"]\nnuma = 1\n[nic.mlx5_0]\nrail = "
      "false\nnuma = 1\n",
      "/etc/fix.toml", &topology);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(topology.gpus_size(), 2);
  EXPECT_EQ(topology.gpus(0).pci(), "0000:11:00.0");
  EXPECT_EQ(topology.gpus(0).index(), 0u);
  EXPECT_EQ(topology.gpus(0).locality().package(), 1u);
  EXPECT_THAT(topology.gpus(0).nvlinks(), ElementsAre(0, 4));
  EXPECT_TRUE(topology.nics(0).never_a_rail());
  EXPECT_THAT(topology.notes(), testing::Contains("GPU 0000:11:00.0 is on NUMA 1, not 0: /etc/fix.toml"));
  EXPECT_EQ(topology.notes_size(), 4);
}

TEST(Overrides, MemoryOnly) {
  v1::NodeTopology topology = Machine();
  ASSERT_TRUE(ApplyOverrides("[numa.1]\nmemory_only = true\n", "f", &topology).ok());
  EXPECT_EQ(topology.allowed_cpus(), "0-1,4-5");
  EXPECT_EQ(topology.numa(1).kind(), v1::NUMA_KIND_MEMORY);
  EXPECT_THAT(Message(ApplyOverrides("[numa.0]\nmemory_only = true\n", "f", &topology)),
              HasSubstr("no allowed CPU is left"));
}

TEST(Overrides, ErrorsSayWhereAndChangeNothing) {
  const std::pair<const char*, const char*> kCases[] = {
      {"[gpu", "f:1:"},
      {"[gpus.x]\n", "f:1:2: unknown section \"gpus\"; did you mean \"gpu\"?"},
      {"gpu = 3\n", "f:1:7: [gpu] must be a table"},
      {"[gpu.\"0000:77:00.0\"]\n", "f:1:6: unknown GPU \"0000:77:00.0\""},
      {"[gpu.\"0000:10:00.0\"]\nnmua = 1\n", "f:2:1: unknown key \"nmua\"; did you mean \"numa\"?"},
      {"[gpu.\"0000:10:00.0\"]\nnuma = 9\n", "f:2:8: there is no NUMA node 9"},
      {"[gpu.\"0000:10:00.0\"]\nnuma = \"1\"\n", "f:2:8: \"numa\" must be a number"},
      {"[gpu.\"0000:10:00.0\"]\nuse = 0\n", "f:2:7: \"use\" must be true or false"},
      {"[nic.mlx5_1]\nrail = false\n", "f:1:6: unknown RDMA device \"mlx5_1\"; did you mean \"mlx5_0\"?"},
      {"[numa.7]\nmemory_only = true\n", "f:1:7: unknown NUMA node \"7\""},
  };
  for (const auto& [text, message] : kCases) {
    v1::NodeTopology topology = Machine();
    EXPECT_THAT(Message(ApplyOverrides(text, "f", &topology)), HasSubstr(message)) << text;
    EXPECT_EQ(topology.SerializeAsString(), Machine().SerializeAsString());
  }
}

// ---- the driver

TEST(Driver, IsACrossCheck) {
  v1::NodeTopology topology = Machine();
  MergeDriver({{"0000:12:00.0", "GPU-c", "H200", {}},
               {"0000:11:00.0", "GPU-b", "H200", {}},
               {"0000:99:00.0", "GPU-d", "H200", {}}},
              &topology);
  ASSERT_EQ(topology.gpus_size(), 3);
  EXPECT_EQ(topology.gpus(0).uuid(), "GPU-b");
  EXPECT_EQ(topology.gpus(1).index(), 1u);
  EXPECT_THAT(topology.gpus(0).nvlinks(), ElementsAre(0, 4, 0));
  EXPECT_FALSE(topology.gpus(2).locality().has_numa());
  EXPECT_THAT(topology.notes(),
              ElementsAre("GPU 0000:10:00.0 is on the bus, and the driver does not show it",
                          "GPU 0000:99:00.0 is not in the PCI tree; where it is, is not known"));
  const absl::StatusOr<v1::NodeBinding> binding = PlanBinding(topology, [] {
    BindingRequest request;
    request.ranks = request.gpus.count = 3;
    return request;
  }());
  ASSERT_TRUE(binding.ok());
  EXPECT_EQ(binding->ranks(2).nearness(), v1::NEARNESS_UNKNOWN);
}

TEST(Driver, MigInstancesAreUnits) {
  v1::NodeTopology topology = Machine();
  v1::GpuPartition small;
  small.set_uuid("MIG-1");
  v1::GpuPartition large;
  large.set_uuid("MIG-2");
  MergeDriver({{"0000:10:00.0", "GPU-a", "H100", {small, large}}}, &topology);
  EXPECT_EQ(UnitsOf(topology).size(), 2u);
}

// ---- sysfs

class Sysfs : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/topology_sysfs_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + "/" + path).parent_path());
    std::ofstream(root_ + "/" + path) << text;
  }

  std::string root_;
};

TEST_F(Sysfs, PortsOfRdmaDevices) {
  v1::NodeTopology topology = Machine();
  Write("class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  Write("class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  Write("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
  Write("class/infiniband/mlx5_7/ports/1/state", "4: ACTIVE\n");
  Write("class/infiniband/mlx5_7/ports/1/rate", "2.5 Gb/sec (1X SDR)\n");
  Write("class/infiniband/mlx5_7/ports/1/link_layer", "Ethernet\n");
  Write("class/infiniband/mlx5_7/device/net/eth7/mtu", "1500\n");
  ReadRdmaPorts(root_, &topology);
  ASSERT_EQ(topology.nics_size(), 2);
  EXPECT_EQ(topology.nics(0).ports(0).state(), v1::PORT_STATE_DOWN);
  EXPECT_EQ(topology.nics(0).ports(0).rate_mbps(), 400000u);
  EXPECT_EQ(topology.nics(1).netdev(), "eth7");
  EXPECT_EQ(topology.nics(1).ports(0).state(), v1::PORT_STATE_ACTIVE);
  EXPECT_EQ(topology.nics(1).ports(0).rate_mbps(), 2500u);
  EXPECT_EQ(topology.nics(1).ports(0).link_layer(), v1::LINK_LAYER_ETHERNET);
  EXPECT_FALSE(topology.nics(1).locality().has_numa());
}

TEST_F(Sysfs, WithoutRdmaNothingChanges) {
  v1::NodeTopology topology = Machine();
  ReadRdmaPorts(root_, &topology);
  EXPECT_EQ(topology.SerializeAsString(), Machine().SerializeAsString());
}

// ---- this machine

TEST(Live, AllowedCpusAreThoseOfThisThread) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CpuList mine;
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) mine.push_back(cpu);
  }
  absl::StatusOr<v1::NodeTopology> topology = ReadTopologyLive("/sys");
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(ListOf(topology->allowed_cpus()), mine);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(mine.back(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  topology = ReadTopologyLive("/sys");
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->allowed_cpus(), absl::StrCat(mine.back()));
  const absl::StatusOr<v1::NodeBinding> binding = PlanBinding(*topology, BindingRequest());
  ASSERT_TRUE(binding.ok()) << binding.status();
  EXPECT_EQ(binding->ranks(0).cpus(), absl::StrCat(mine.back()));
}

}  // namespace
}  // namespace dgxrun
