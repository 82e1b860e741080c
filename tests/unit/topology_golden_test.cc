// Plans for real machines: the topology files of ../shared/topologies (not part of this repository), each
// with several requests, against text in golden/topology that a person has read. To write it anew, after a
// change that is meant:
//
//   DGXRUN_WRITE_GOLDEN=1 build/debug/tests/topology_golden_test --gtest_filter='*Golden*' && git diff
//   tests/unit/golden
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/binding/cpu_list.h"
#include "launcher/binding/plan_binding.h"
#include "launcher/binding/render.h"
#include "launcher/binding/split_cores.h"
#include "launcher/topology/read_topology.h"

namespace dgxrun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Shared() {
  const char* folder = std::getenv("DGXRUN_SHARED");
  return absl::StrCat(folder != nullptr ? folder : DGXRUN_SHARED_DEFAULT, "/topologies");
}

std::vector<std::string> Machines() {
  std::vector<std::string> machines;
  for (const char* folder : {"hwloc", "derived"}) {
    std::error_code error;
    std::filesystem::directory_iterator it(absl::StrCat(Shared(), "/", folder), error);
    for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
      machines.push_back(absl::StrCat(folder, "/", it->path().filename().string()));
    }
  }
  std::sort(machines.begin(), machines.end());
  return machines;
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Without UUIDs: they are of somebody's hardware, and not what these tests are about.
v1::NodeTopology Read(const std::string& machine) {
  static std::map<std::string, v1::NodeTopology> read;  // hwloc needs a while for each
  if (const auto found = read.find(machine); found != read.end()) return found->second;
  absl::StatusOr<v1::NodeTopology> topology = ReadTopologyFile(absl::StrCat(Shared(), "/", machine));
  EXPECT_TRUE(topology.ok()) << topology.status();
  if (!topology.ok()) return {};
  for (v1::GpuPlace& gpu : *topology->mutable_gpus()) gpu.clear_uuid();
  topology->set_source(machine);
  return read.emplace(machine, *std::move(topology)).first->second;
}

uint32_t UnitCount(const v1::NodeTopology& topology) {
  return static_cast<uint32_t>(UnitsOf(topology).size());
}

// As many ranks as units; four where there is no GPU.
BindingRequest RequestFor(const v1::NodeTopology& topology, uint32_t gpus) {
  BindingRequest request;
  request.gpus.count = gpus;
  request.ranks = UnitCount(topology) == 0 ? 4 : std::max<uint32_t>(1, gpus);
  return request;
}

// A job that a scheduler gave the first half of the NUMA nodes (one socket of two), without the last thread
// of the first core.
void Restrict(v1::NodeTopology* topology) {
  const std::vector<CpuNode> nodes = CpuNodes(*topology);
  CpuList cpus;
  for (size_t n = 0; n < (nodes.size() + 1) / 2; ++n) {
    for (const CpuNode::UsableCore& core : nodes[n].cores) {
      const bool first = cpus.empty() && core.cpus.size() > 1;
      cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end() - (first ? 1 : 0));
    }
  }
  ASSERT_TRUE(RestrictCpus(FormatCpuList(Normalized(cpus)), topology).ok());
}

class Machine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(Shared())) {
      std::fprintf(stderr, "%s is not there: the tests over real topologies cannot run\n", Shared().c_str());
      GTEST_SKIP() << Shared() << " is not there";
    }
  }
};

// ---- golden files

void Compare(const std::string& machine, const std::string& request, const std::string& text) {
  const std::string name = std::filesystem::path(machine).stem().string();
  const std::string path = absl::StrCat(DGXRUN_GOLDEN, "/", name, ".", request, ".txt");
  if (std::getenv("DGXRUN_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text, Slurp(path)) << path << "\nIf the change is meant: the head of topology_golden_test.cc";
}

std::string PlanText(const v1::NodeTopology& topology, const BindingRequest& request) {
  const absl::StatusOr<v1::NodeBinding> binding = PlanBinding(topology, request);
  return binding.ok() ? BindingText(topology, *binding)
                      : absl::StrCat("error: ", binding.status().message(), "\n");
}

TEST_F(Machine, GoldenAll) {
  for (const std::string& machine : Machines()) {
    const v1::NodeTopology topology = Read(machine);
    Compare(machine, "all",
            absl::StrCat(TopologyText(topology), "\n",
                         PlanText(topology, RequestFor(topology, UnitCount(topology)))));
  }
}

TEST_F(Machine, GoldenHalf) {
  for (const std::string& machine : Machines()) {
    const v1::NodeTopology topology = Read(machine);
    BindingRequest request = RequestFor(topology, (UnitCount(topology) + 1) / 2);
    if (UnitCount(topology) == 0) request.ranks = 2;
    Compare(machine, "half", PlanText(topology, request));
  }
}

TEST_F(Machine, GoldenRestricted) {
  for (const std::string& machine : Machines()) {
    v1::NodeTopology topology = Read(machine);
    Restrict(&topology);
    Compare(machine, "restricted",
            absl::StrCat("CPUs allowed ", topology.allowed_cpus(), "\n",
                         PlanText(topology, RequestFor(topology, UnitCount(topology)))));
  }
}

TEST_F(Machine, GoldenPackageShare) {
  for (const char* machine : {"derived/a100x8-nps4-128pu.xml", "derived/a100x8-nps4-256pu.xml",
                              "hwloc/fluxcore__ipa20.xml", "hwloc/prrte__turin-4gpu-nvml.xml"}) {
    const v1::NodeTopology topology = Read(machine);
    BindingRequest request = RequestFor(topology, UnitCount(topology));
    request.cpu_share = CpuShare::kPackage;
    Compare(machine, "package", PlanText(topology, request));
  }
}

TEST_F(Machine, EveryGoldenFileIsOfAMachine) {
  std::set<std::string> names;
  for (const std::string& machine : Machines()) names.insert(std::filesystem::path(machine).stem().string());
  for (const auto& entry : std::filesystem::directory_iterator(DGXRUN_GOLDEN)) {
    const std::string stem = entry.path().stem().string();  // without .txt
    EXPECT_EQ(names.count(stem.substr(0, stem.rfind('.'))), 1u) << entry.path();
  }
}

// ---- what is known of these machines from elsewhere

std::vector<int> NumaOfGpus(const v1::NodeTopology& topology) {
  std::vector<int> numa;
  for (const v1::GpuPlace& gpu : topology.gpus()) {
    numa.push_back(gpu.locality().has_numa() ? static_cast<int>(gpu.locality().numa()) : -1);
  }
  return numa;
}

// open-mpi/ompi#14169, flux-framework/flux-sched#986 and the table beside the files.
TEST_F(Machine, GpusAreWhereTheyAre) {
  const std::map<std::string, std::vector<int>> known = {
      {"hwloc/fluxcore__corona.xml", {0, 0, 0, 0, 1, 1, 1, 1}},
      {"hwloc/fluxcore__ipa20.xml", {3, 1, 7, 5}},
      {"hwloc/fluxcore__sierra.xml", {0, 0, 8, 8}},
      {"hwloc/fluxcore__tuo.CPX.xml", {0, 1, 2, 3}},
      {"hwloc/fluxcore__tuo.SPX.xml", {0, 1, 2, 3}},
      {"hwloc/hwloc__16amd64-8n2c-cpusets.xml", {}},
      {"hwloc/hwloc__8intel64-4n2t-memattrs.xml", {}},
      {"hwloc/hwloc__nvidiaDGX2.xml", {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}},
      {"hwloc/mpibind__eas-tioga.xml", {3, 3, 1, 1, 0, 0, 2, 2}},
      {"hwloc/mpibind__g4dnmetal.xml", {0, 0, 0, 0, 1, 1, 1, 1}},
      {"hwloc/openpmix__nvml-4gpu.xml", {1, 2, 6, 7}},
      {"hwloc/openpmix__summit.h17n08.lstopo-2.2.0.xml", {0, 0, 0, 8, 8, 8}},
      {"hwloc/prrte__turin-4gpu-nvml.xml", {1, 2, 6, 7}},
      {"hwloc/prrte__turin-4gpu.xml", {1, 2, 6, 7}},
      {"derived/a100x8-aws-p4d-vm.xml", {0, 0, 0, 0, 1, 1, 1, 1}},
      {"derived/a100x8-azure-ndv4-vm.xml", {1, 1, 0, 0, 3, 3, 2, 2}},
      {"derived/a100x8-nps4-128pu.xml", {3, 3, 1, 1, 7, 7, 5, 5}},
      {"derived/a100x8-nps4-256pu.xml", {3, 3, 1, 1, 7, 7, 5, 5}},
      {"derived/h100x8-azure-ndv5-vm.xml", {0, 0, 0, 0, 1, 1, 1, 1}},
      {"derived/h100x8-spr-224pu.xml", {0, 0, 0, 0, 1, 1, 1, 1}},
      {"derived/nvidiagpunumanodes-hidden.xml", {}},
      // The table counts none: their vendor is not in the file. Their memory is, and names them.
      {"derived/nvidiagpunumanodes-kept.xml", {0, 0, 0, 8, 8, 8}},
  };
  for (const std::string& machine : Machines()) {
    ASSERT_EQ(known.count(machine), 1u) << machine << " is new: say here where its GPUs are";
    EXPECT_EQ(NumaOfGpus(Read(machine)), known.at(machine)) << machine;
  }
}

std::vector<std::string> CpusOfRanks(const v1::NodeTopology& topology, const BindingRequest& request) {
  const absl::StatusOr<v1::NodeBinding> binding = PlanBinding(topology, request);
  EXPECT_TRUE(binding.ok()) << binding.status();
  std::vector<std::string> cpus;
  for (const v1::RankBinding& rank : binding->ranks()) cpus.push_back(rank.cpus());
  return cpus;
}

// The CPU columns of `nvidia-smi topo -m` of the same machines (NVIDIA/nccl#1505, #1435, open-mpi/ompi#14169,
// vllm-project/vllm#13855): with --bind numa a rank gets what it says.
TEST_F(Machine, AgreesWithNvidiaSmi) {
  const std::map<std::string, std::vector<std::string>> posted = {
      {"derived/a100x8-nps4-256pu.xml", {"48-63,176-191", "48-63,176-191", "16-31,144-159", "16-31,144-159"}},
      {"derived/a100x8-nps4-128pu.xml",
       {"24-31,88-95", "24-31,88-95", "8-15,72-79", "8-15,72-79", "56-63,120-127", "56-63,120-127",
        "40-47,104-111", "40-47,104-111"}},
      {"hwloc/prrte__turin-4gpu-nvml.xml",
       {"16-31,144-159", "32-47,160-175", "96-111,224-239", "112-127,240-255"}},
      {"derived/h100x8-spr-224pu.xml",
       {"0-55,112-167", "0-55,112-167", "0-55,112-167", "0-55,112-167", "56-111,168-223", "56-111,168-223",
        "56-111,168-223", "56-111,168-223"}},
  };
  for (const auto& [machine, cpus] : posted) {
    const v1::NodeTopology topology = Read(machine);
    BindingRequest request = RequestFor(topology, UnitCount(topology));
    request.bind = Bind::kNuma;
    std::vector<std::string> planned = CpusOfRanks(topology, request);
    planned.resize(cpus.size());  // some posts are cut
    EXPECT_EQ(planned, cpus) << machine;
  }
}

// torchrun's "exclusive" on a DGX A100: the node's cores split between its two GPUs.
TEST_F(Machine, SplitsLikeTorchrunsExclusive) {
  const v1::NodeTopology topology = Read("derived/a100x8-nps4-256pu.xml");
  const std::vector<std::string> cpus = CpusOfRanks(topology, RequestFor(topology, 8));
  EXPECT_EQ(cpus[0], "48-55,176-183");
  EXPECT_EQ(cpus[1], "56-63,184-191");
}

// rapidsai/dask-cuda#1381: the job's CPUs are all on socket 0.
TEST_F(Machine, GpusOfTheOtherSocketStillGetCores) {
  v1::NodeTopology topology = Read("derived/h100x8-spr-224pu.xml");
  ASSERT_TRUE(RestrictCpus("0-15,112-127", &topology).ok());
  const absl::StatusOr<v1::NodeBinding> binding = PlanBinding(topology, RequestFor(topology, 8));
  ASSERT_TRUE(binding.ok()) << binding.status();
  int far = 0;
  for (const v1::RankBinding& rank : binding->ranks()) {
    EXPECT_EQ(rank.cores(), 2u);
    far += rank.nearness() == v1::NEARNESS_LOCAL ? 0 : 1;
  }
  EXPECT_EQ(far, 4);
  ASSERT_FALSE(binding->warnings().empty());
  EXPECT_THAT(binding->warnings(0), HasSubstr("GPU 4-7: no allowed core to spare on NUMA 1"));
  BindingRequest strict = RequestFor(topology, 8);
  strict.strict = true;
  EXPECT_EQ(PlanBinding(topology, strict).status().code(), absl::StatusCode::kFailedPrecondition);
}

// bytedance/xpu-perf#129, NVIDIA/mlperf-common#16: memory of GPUs shows as NUMA nodes.
TEST_F(Machine, MemoryOfGpusIsNeverForRanks) {
  const v1::NodeTopology topology = Read("derived/nvidiagpunumanodes-kept.xml");
  std::vector<uint32_t> with_cpus;
  for (const v1::NumaNode& numa : topology.numa()) {
    if (numa.kind() == v1::NUMA_KIND_CPU) with_cpus.push_back(numa.id());
  }
  EXPECT_THAT(with_cpus, ElementsAre(0, 8));
  const absl::StatusOr<v1::NodeBinding> binding = PlanBinding(topology, RequestFor(topology, 6));
  ASSERT_TRUE(binding.ok()) << binding.status();
  for (const v1::RankBinding& rank : binding->ranks()) EXPECT_THAT(rank.mems(), testing::AnyOf("0", "8"));
}

// uccl-project/uccl#160: everybody took the first of two cards.
TEST_F(Machine, EveryRailIsUsedOnceWhereCountsMatch) {
  for (const char* machine :
       {"derived/a100x8-nps4-128pu.xml", "derived/a100x8-nps4-256pu.xml", "derived/a100x8-azure-ndv4-vm.xml",
        "derived/h100x8-azure-ndv5-vm.xml", "hwloc/fluxcore__sierra.xml", "hwloc/mpibind__eas-tioga.xml",
        "hwloc/fluxcore__tuo.SPX.xml", "derived/h100x8-spr-224pu.xml"}) {
    const v1::NodeTopology topology = Read(machine);
    const absl::StatusOr<v1::NodeBinding> binding =
        PlanBinding(topology, RequestFor(topology, UnitCount(topology)));
    ASSERT_TRUE(binding.ok()) << binding.status();
    std::map<std::string, int> uses;
    for (const v1::RankBinding& rank : binding->ranks()) {
      for (const std::string& nic : rank.nics()) ++uses[nic];
    }
    for (const v1::NicPlace& nic : topology.nics()) {
      // Fewer cards than GPUs on Tioga: each of the four serves two.
      const int expected = absl::StrContains(machine, "tioga") ? 2 : 1;
      EXPECT_EQ(uses[nic.name()], expected) << machine << " " << nic.name();
    }
  }
}

TEST_F(Machine, ATopologyIsSmall) {
  for (const std::string& machine : Machines()) EXPECT_LT(Read(machine).ByteSizeLong(), 8000u) << machine;
}

TEST_F(Machine, OtherFilesSayWhatTheyAre) {
  for (const auto& entry : std::filesystem::directory_iterator(Shared() + "/nccl")) {
    const absl::StatusOr<v1::NodeTopology> topology = ReadTopologyFile(entry.path());
    ASSERT_FALSE(topology.ok());
    EXPECT_THAT(std::string(topology.status().message()), HasSubstr("NCCL's own topology")) << entry.path();
  }
}

// ---- promises, over these machines, random sets of CPUs and random requests

struct Case {
  v1::NodeTopology topology;
  BindingRequest request;
};

Case RandomCase(const v1::NodeTopology& whole, std::mt19937* random) {
  Case c{whole, {}};
  const CpuList all = ListOf(whole.allowed_cpus());
  CpuList some;
  const unsigned one_in = 1 + (*random)() % 8;
  // Whole stretches, as schedulers give, or single threads.
  const bool stretches = (*random)() % 2 == 0;
  bool in = false;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!stretches || i % 8 == 0) in = (*random)() % one_in == 0;
    if (in) some.push_back(all[i]);
  }
  if (some.empty()) some = {all[(*random)() % all.size()]};
  EXPECT_TRUE(RestrictCpus(FormatCpuList(some), &c.topology).ok());
  const uint32_t units = UnitCount(whole);
  c.request.gpus.count = units == 0 ? 0 : static_cast<uint32_t>((*random)() % (units + 1));
  c.request.ranks = c.request.gpus.count > 0 && (*random)() % 4 != 0
                        ? c.request.gpus.count
                        : static_cast<uint32_t>(1 + (*random)() % 12);
  c.request.bind = static_cast<Bind>((*random)() % 4);
  c.request.cpu_share = static_cast<CpuShare>((*random)() % 3);
  c.request.membind = static_cast<Membind>((*random)() % 3);
  return c;
}

void CheckPromises(const Case& c, const v1::NodeBinding& binding) {
  const CpuList allowed = ListOf(c.topology.allowed_cpus());
  std::map<std::vector<uint32_t>, int> users;  // core -> ranks
  ASSERT_EQ(binding.ranks_size(), static_cast<int>(c.request.ranks));
  for (const v1::RankBinding& rank : binding.ranks()) {
    EXPECT_GE(rank.omp_threads(), 1u);
    EXPECT_GE(rank.loader_workers(), 1u);
    if (c.request.bind == Bind::kNone) {
      EXPECT_EQ(rank.cpus(), "");
      EXPECT_EQ(rank.mems(), "");
      continue;
    }
    const CpuList cpus = ListOf(rank.cpus());
    EXPECT_FALSE(cpus.empty());
    EXPECT_EQ(Intersection(cpus, allowed), cpus);
    for (const v1::NumaNode& numa : c.topology.numa()) {
      if (Contains(ListOf(rank.mems()), numa.id())) {
        EXPECT_EQ(numa.kind(), v1::NUMA_KIND_CPU);
      }
      for (const v1::Core& core : numa.cores()) {
        const CpuList threads = Intersection({core.cpus().begin(), core.cpus().end()}, allowed);
        if (threads.empty()) continue;
        const CpuList taken = Intersection(threads, cpus);
        EXPECT_TRUE(taken.empty() || taken == threads) << "a core is split";
        users[threads] += taken.empty() ? 0 : 1;
      }
    }
  }
  if (c.request.bind != Bind::kCore) return;
  // Cores that the plan leaves to other GPUs of the node are not free; so this is about jobs that use all.
  const bool whole_node =
      c.request.gpus.count == UnitCount(c.topology) && c.request.ranks == c.request.gpus.count;
  if (!whole_node) return;
  bool shared = false;
  bool free = false;
  for (const auto& [core, ranks] : users) {
    shared |= ranks > 1;
    free |= ranks == 0;
  }
  EXPECT_FALSE(shared && free);
}

void Shuffle(std::mt19937* random, v1::NodeTopology* topology) {
  std::vector<int> order(static_cast<size_t>(topology->gpus_size()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::shuffle(order.begin(), order.end(), *random);
  const v1::NodeTopology before = *topology;
  for (size_t i = 0; i < order.size(); ++i) {
    v1::GpuPlace* gpu = topology->mutable_gpus(static_cast<int>(i));
    *gpu = before.gpus(order[i]);
    for (size_t j = 0; j < order.size() && gpu->nvlinks_size() > 0; ++j) {
      gpu->set_nvlinks(static_cast<int>(j), before.gpus(order[i]).nvlinks(order[j]));
    }
  }
  std::shuffle(topology->mutable_nics()->begin(), topology->mutable_nics()->end(), *random);
  std::vector<int> numa(static_cast<size_t>(before.numa_size()));
  for (size_t i = 0; i < numa.size(); ++i) numa[i] = static_cast<int>(i);
  std::shuffle(numa.begin(), numa.end(), *random);
  for (size_t i = 0; i < numa.size(); ++i) {
    v1::NumaNode* node = topology->mutable_numa(static_cast<int>(i));
    *node = before.numa(numa[i]);
    for (size_t j = 0; j < numa.size() && node->distances_size() > 0; ++j) {
      node->set_distances(static_cast<int>(j), before.numa(numa[i]).distances(numa[j]));
    }
    std::shuffle(node->mutable_cores()->begin(), node->mutable_cores()->end(), *random);
  }
}

TEST_F(Machine, PromisesHold) {
  constexpr int kCasesEach = 25;
  std::mt19937 random(20261201);
  for (const std::string& machine : Machines()) {
    const v1::NodeTopology whole = Read(machine);
    for (int i = 0; i < kCasesEach; ++i) {
      SCOPED_TRACE(absl::StrCat(machine, " case ", i));
      const Case c = RandomCase(whole, &random);
      const absl::StatusOr<v1::NodeBinding> binding = PlanBinding(c.topology, c.request);
      ASSERT_TRUE(binding.ok()) << binding.status();
      CheckPromises(c, *binding);
      v1::NodeTopology shuffled = c.topology;
      Shuffle(&random, &shuffled);
      const absl::StatusOr<v1::NodeBinding> again = PlanBinding(shuffled, c.request);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(again->SerializeAsString(), binding->SerializeAsString());
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Two jobs on one node never meet: a GPU's cores and rail are the same in a job of its own.
TEST_F(Machine, APartOfTheNodePlansAsTheWhole) {
  for (const std::string& machine : Machines()) {
    const v1::NodeTopology topology = Read(machine);
    if (topology.gpus_size() == 0 || UnitCount(topology) != static_cast<uint32_t>(topology.gpus_size()))
      continue;
    const absl::StatusOr<v1::NodeBinding> all =
        PlanBinding(topology, RequestFor(topology, UnitCount(topology)));
    ASSERT_TRUE(all.ok());
    for (const v1::RankBinding& rank : all->ranks()) {
      BindingRequest one;
      one.gpus.indices = {rank.gpus(0)};
      const absl::StatusOr<v1::NodeBinding> alone = PlanBinding(topology, one);
      ASSERT_TRUE(alone.ok());
      EXPECT_EQ(alone->ranks(0).cpus(), rank.cpus()) << machine;
      EXPECT_THAT(alone->ranks(0).nics(), testing::ElementsAreArray(rank.nics())) << machine;
    }
  }
}

}  // namespace
}  // namespace dgxrun
