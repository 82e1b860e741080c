#include "launcher/nccl/network.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dgxrun::nccl {
namespace {

using Bytes16 = std::array<uint8_t, 16>;

std::optional<Bytes16> ParseIpv6(absl::string_view text) {
  Bytes16 bytes{};
  if (inet_pton(AF_INET6, std::string(text).c_str(), bytes.data()) != 1) return std::nullopt;
  return bytes;
}

std::optional<Bytes16> BytesOf(const InterfaceAddress& address) {
  if (address.ipv6) return ParseIpv6(address.address);
  Bytes16 bytes{};
  if (inet_pton(AF_INET, address.address.c_str(), bytes.data()) != 1) return std::nullopt;
  return bytes;
}

bool StartsWithZeros(const Bytes16& bytes, size_t count) {
  return std::all_of(bytes.begin(), bytes.begin() + static_cast<long>(count),
                     [](uint8_t byte) { return byte == 0; });
}

}  // namespace

bool IsLinkLocal(const InterfaceAddress& address) {
  const std::optional<Bytes16> bytes = BytesOf(address);
  if (!bytes) return false;
  if (address.ipv6) return (*bytes)[0] == 0xfe && ((*bytes)[1] & 0xc0) == 0x80;
  return (*bytes)[0] == 169 && (*bytes)[1] == 254;
}

bool IsLoopback(const InterfaceAddress& address) {
  const std::optional<Bytes16> bytes = BytesOf(address);
  if (!bytes) return false;
  if (address.ipv6) return StartsWithZeros(*bytes, 15) && (*bytes)[15] == 1;
  return (*bytes)[0] == 127;
}

std::string SubnetOf(const InterfaceAddress& address) {
  std::optional<Bytes16> bytes = BytesOf(address);
  if (!bytes) return "";
  const uint32_t bits = address.ipv6 ? 128 : 32;
  const uint32_t prefix = std::min(address.prefix, bits);
  for (uint32_t bit = prefix; bit < bits; ++bit) {
    (*bytes)[bit / 8] = static_cast<uint8_t>((*bytes)[bit / 8] & ~(0x80u >> (bit % 8)));
  }
  char text[INET6_ADDRSTRLEN];
  if (inet_ntop(address.ipv6 ? AF_INET6 : AF_INET, bytes->data(), text, sizeof(text)) == nullptr) return "";
  return absl::StrCat(text, "/", prefix);
}

bool IsIpv4Gid(absl::string_view gid) {
  const std::optional<Bytes16> bytes = ParseIpv6(gid);
  return bytes && StartsWithZeros(*bytes, 10) && (*bytes)[10] == 0xff && (*bytes)[11] == 0xff;
}

bool IsLinkLocalGid(absl::string_view gid) {
  const std::optional<Bytes16> bytes = ParseIpv6(gid);
  return bytes && (*bytes)[0] == 0xfe && ((*bytes)[1] & 0xc0) == 0x80;
}

bool IsEmptyGid(absl::string_view gid) {
  const std::optional<Bytes16> bytes = ParseIpv6(gid);
  return !bytes || StartsWithZeros(*bytes, 16);
}

bool IsGoodGid(const Gid& gid) { return gid.type == "RoCE v2" && IsIpv4Gid(gid.gid); }

const Gid* EffectiveGid(const RdmaPort& port, int64_t index) {
  const Gid* best = nullptr;
  int best_rank = -1;
  for (const Gid& gid : port.gids) {
    if (index >= 0) {
      if (gid.index == index) return &gid;
      continue;
    }
    const int rank =
        (IsIpv4Gid(gid.gid) ? 4 : 0) + (IsLinkLocalGid(gid.gid) ? 0 : 2) + (gid.type == "RoCE v2" ? 1 : 0);
    if (rank > best_rank) {
      best = &gid;
      best_rank = rank;
    }
  }
  return best;
}

bool IsActive(const RdmaPort& port) {
  // NCCL takes ports of these two link layers; others (EFA) belong to a plugin of their own.
  return port.state == LinkState::kUp && port.link_layer != LinkLayer::kUnknown;
}

const NetInterface* FindInterface(const NodeNetwork& node, absl::string_view name) {
  for (const NetInterface& one : node.interfaces) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

const RdmaDevice* FindDevice(const NodeNetwork& node, absl::string_view name) {
  for (const RdmaDevice& one : node.rdma) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

const RdmaDevice* DeviceOfNetdev(const NodeNetwork& node, absl::string_view netdev) {
  for (const RdmaDevice& one : node.rdma) {
    if (std::find(one.netdevs.begin(), one.netdevs.end(), netdev) != one.netdevs.end()) return &one;
  }
  return nullptr;
}

const char* Word(LinkLayer layer) {
  switch (layer) {
    case LinkLayer::kUnknown:
      return "unknown";
    case LinkLayer::kInfiniBand:
      return "InfiniBand";
    case LinkLayer::kEthernet:
      return "Ethernet (RoCE)";
  }
  return "";
}

std::string RateText(uint32_t rate_mbps) {
  if (rate_mbps == 0) return "unknown rate";
  if (rate_mbps % 1000 == 0) return absl::StrCat(rate_mbps / 1000, " Gb/s");
  return absl::StrFormat("%.1f Gb/s", rate_mbps / 1000.0);
}

bool NaturalLess(absl::string_view a, absl::string_view b) {
  const absl::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (absl::ascii_isdigit(static_cast<unsigned char>(a[0])) &&
        absl::ascii_isdigit(static_cast<unsigned char>(b[0]))) {
      const auto cut = [](absl::string_view& text) {
        while (text.size() > 1 && text[0] == '0') text.remove_prefix(1);
        size_t digits = 0;
        while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits])))
          ++digits;
        const absl::string_view number = text.substr(0, digits);
        text.remove_prefix(digits);
        return number;
      };
      const absl::string_view number_a = cut(a), number_b = cut(b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0];
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;
}

}  // namespace dgxrun::nccl
