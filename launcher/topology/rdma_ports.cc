#include "launcher/topology/rdma_ports.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dgxrun {
namespace {

constexpr size_t kMaxEntries = 1024;  // of a folder of sysfs; a node has some tens of devices

std::string ReadLine(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(absl::StripAsciiWhitespace(line));
}

std::vector<std::string> Entries(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  for (; !error && it != std::filesystem::directory_iterator() && names.size() < kMaxEntries;
       it.increment(error)) {
    names.push_back(it->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "400 Gb/sec (4X NDR)" and "2.5 Gb/sec (1X SDR)".
uint32_t RateOf(const std::string& text) {
  double gigabits = 0;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  if (words.size() < 2 || words[1] != "Gb/sec" || !absl::SimpleAtod(words[0], &gigabits)) return 0;
  return gigabits > 0 && gigabits < 1e6 ? static_cast<uint32_t>(gigabits * 1000) : 0;
}

v1::PortState StateOf(const std::string& text) {
  if (absl::EndsWith(text, "ACTIVE")) return v1::PORT_STATE_ACTIVE;  // "4: ACTIVE"
  return text.empty() ? v1::PORT_STATE_UNSPECIFIED : v1::PORT_STATE_DOWN;
}

v1::LinkLayer LinkLayerOf(const std::string& text) {
  if (text == "InfiniBand") return v1::LINK_LAYER_INFINIBAND;
  if (text == "Ethernet") return v1::LINK_LAYER_ETHERNET;
  return v1::LINK_LAYER_UNSPECIFIED;
}

v1::NicPlace* Find(v1::NodeTopology* topology, const std::string& name) {
  for (v1::NicPlace& nic : *topology->mutable_nics()) {
    if (nic.name() == name) return &nic;
  }
  return nullptr;
}

}  // namespace

void ReadRdmaPorts(const std::string& sysfs, v1::NodeTopology* topology) {
  const std::filesystem::path root = std::filesystem::path(sysfs) / "class/infiniband";
  for (const std::string& name : Entries(root)) {
    v1::NicPlace* nic = Find(topology, name);
    if (nic == nullptr) {
      nic = topology->add_nics();
      nic->set_name(name);
      // Its own host bridge, so that it is near to nothing.
      nic->mutable_path()->set_host_bridge(static_cast<uint32_t>(topology->nics_size() + (1 << 16)));
      topology->add_notes(absl::StrCat("where the RDMA device ", name, " is, is not known"));
    }
    const std::vector<std::string> netdevs = Entries(root / name / "device/net");
    if (nic->netdev().empty() && !netdevs.empty()) nic->set_netdev(netdevs.front());
    std::vector<v1::NicPort> ports;
    for (const std::string& entry : Entries(root / name / "ports")) {
      v1::NicPort port;
      uint32_t number = 0;
      if (!absl::SimpleAtoi(entry, &number)) continue;
      const std::filesystem::path folder = root / name / "ports" / entry;
      port.set_number(number);
      port.set_state(StateOf(ReadLine(folder / "state")));
      port.set_rate_mbps(RateOf(ReadLine(folder / "rate")));
      port.set_link_layer(LinkLayerOf(ReadLine(folder / "link_layer")));
      ports.push_back(port);
    }
    if (ports.empty()) continue;
    std::sort(ports.begin(), ports.end(),
              [](const v1::NicPort& a, const v1::NicPort& b) { return a.number() < b.number(); });
    nic->mutable_ports()->Assign(ports.begin(), ports.end());
  }
}

}  // namespace dgxrun
