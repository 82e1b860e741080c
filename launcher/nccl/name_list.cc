#include "launcher/nccl/name_list.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dgxrun::nccl {
namespace {

constexpr size_t kMaxTokens = 32;       // MAX_IB_DEVS and MAX_IFS of NCCL
constexpr size_t kMaxConfLines = 4096;  // a file of a person has some tens

// An address that NCCL can use: of the family asked for, and no IPv6 loopback.
bool HasAddress(const NetInterface& interface, absl::string_view family) {
  return std::any_of(interface.addresses.begin(), interface.addresses.end(),
                     [&](const InterfaceAddress& one) {
                       if (family == "AF_INET" && one.ipv6) return false;
                       if (family == "AF_INET6" && !one.ipv6) return false;
                       return !(one.ipv6 && IsLoopback(one));
                     });
}

std::vector<const NetInterface*> Matching(const NodeNetwork& node, absl::string_view list,
                                          absl::string_view family, bool with_down) {
  const NameList names = ParseNameList(list);
  std::vector<const NetInterface*> found;
  for (const NetInterface& one : node.interfaces) {
    if (one.state == LinkState::kDown && !with_down) continue;
    if (HasAddress(one, family) && names.Takes(one.name, -1)) found.push_back(&one);
  }
  return found;
}

}  // namespace

bool NameList::TokenMatches(const NameToken& token, absl::string_view name, int port) const {
  if (token.port != -1 && port != -1 && token.port != port) return false;
  return exact ? name == token.name : absl::StartsWith(name, token.name);
}

bool NameList::Takes(absl::string_view name, int port) const {
  const bool matches =
      tokens.empty() || std::any_of(tokens.begin(), tokens.end(),
                                    [&](const NameToken& token) { return TokenMatches(token, name, port); });
  return matches != exclude;
}

NameList ParseNameList(absl::string_view value) {
  NameList list;
  if (absl::StartsWith(value, "^")) {
    list.exclude = true;
    value.remove_prefix(1);
  }
  if (absl::StartsWith(value, "=")) {
    list.exact = true;
    value.remove_prefix(1);
  }
  for (absl::string_view part : absl::StrSplit(value, ',', absl::SkipEmpty())) {
    if (list.tokens.size() == kMaxTokens) break;
    const std::vector<absl::string_view> fields = absl::StrSplit(part, ':');
    NameToken token{std::string(fields[0]), -1};
    int port = 0;
    if (fields.size() > 1 && absl::SimpleAtoi(fields[1], &port)) token.port = port;
    if (!token.name.empty()) list.tokens.push_back(std::move(token));
  }
  return list;
}

std::string PortName(const PortRef& ref) { return absl::StrCat(ref.device->name, ":", ref.port->number); }

std::vector<PortRef> UsablePorts(const NodeNetwork& node, absl::string_view hca) {
  const NameList names = ParseNameList(hca);
  std::vector<PortRef> found;
  for (const RdmaDevice& device : node.rdma) {
    for (const RdmaPort& port : device.ports) {
      if (IsActive(port) && names.Takes(device.name, static_cast<int>(port.number))) {
        found.push_back({&device, &port});
      }
    }
  }
  return found;
}

std::vector<const NetInterface*> NcclInterfaces(const NodeNetwork& node, const Environment& env,
                                                int version) {
  const bool with_down = version != 0 && version < kDownIsSkippedSince;
  const std::string family = ValueOf(env, "NCCL_SOCKET_FAMILY");
  const std::string set = ValueOf(env, "NCCL_SOCKET_IFNAME");
  // A value of one character is not looked at.
  if (set.size() > 1) return Matching(node, set, family, with_down);
  for (const char* step : {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"}) {
    std::vector<const NetInterface*> found = Matching(node, step, family, with_down);
    if (!found.empty()) return found;
  }
  return {};
}

int64_t NcclNumber(absl::string_view text, bool* clean) {
  const std::string copy(text);
  char* end = nullptr;
  const int64_t value = std::strtoll(copy.c_str(), &end, 0);
  *clean = !copy.empty() && end == copy.c_str() + copy.size();
  return value;
}

Environment ParseNcclConf(absl::string_view text) {
  Environment env;
  size_t lines = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (++lines > kMaxConfLines) break;
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos || equals == 0) continue;
    // The first one stays: NCCL sets without overwriting.
    env.emplace(std::string(line.substr(0, equals)), std::string(line.substr(equals + 1)));
  }
  return env;
}

Environment EffectiveEnvironment(const NodeNetwork& node, const Environment& env) {
  Environment all = env;
  for (const auto& [name, value] : ParseNcclConf(node.nccl_conf)) all.emplace(name, value);
  return all;
}

std::string ValueOf(const Environment& env, const std::string& name) {
  const auto found = env.find(name);
  return found == env.end() ? "" : found->second;
}

}  // namespace dgxrun::nccl
