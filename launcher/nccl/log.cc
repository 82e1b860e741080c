#include "launcher/nccl/log.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace dgxrun::nccl {
namespace {

constexpr size_t kMaxWarnings = 32;  // the first ones tell; a storm repeats them
constexpr size_t kMaxWarningText = 512;
constexpr size_t kMaxDevices = 64;  // MAX_IB_DEVS is 32, with virtual ones twice that
constexpr size_t kMaxNames = 128;   // of NICs, kinds, variables
constexpr size_t kMaxText = 256;    // of a name or an address

std::string Cut(absl::string_view text) { return std::string(text.substr(0, kMaxText)); }

absl::string_view TakeDigits(absl::string_view* text) {
  size_t digits = 0;
  while (digits < text->size() && absl::ascii_isdigit(static_cast<unsigned char>((*text)[digits]))) ++digits;
  const absl::string_view number = text->substr(0, digits);
  text->remove_prefix(digits);
  return number;
}

template <typename T>
bool TakeNumber(absl::string_view* text, T* number) {
  return absl::SimpleAtoi(TakeDigits(text), number);
}

struct Prefix {
  absl::string_view host;
  int64_t pid = 0;
  bool warn = false;
  absl::string_view text;
};

// "[timestamp] host:pid:tid [cudaDev] [file:line ]NCCL INFO|WARN text"; the timestamp may be absent or end in
// "_" (NCCL_DEBUG_TIMESTAMP_FORMAT).
std::optional<Prefix> ParsePrefix(absl::string_view line) {
  size_t mark = line.find(" NCCL INFO ");
  const bool warn = mark == absl::string_view::npos;
  if (warn) mark = line.find(" NCCL WARN ");
  if (mark == absl::string_view::npos) return std::nullopt;
  Prefix prefix;
  prefix.warn = warn;
  prefix.text = line.substr(mark + 11);
  absl::string_view head = line.substr(0, mark);
  if (absl::StartsWith(head, "[")) {
    const size_t end = head.find(']');
    if (end == absl::string_view::npos) return std::nullopt;
    head.remove_prefix(end + 1);
    while (!head.empty() && (head[0] == ' ' || head[0] == '_')) head.remove_prefix(1);
  }
  const size_t colon = head.find(':');
  if (colon == absl::string_view::npos || colon == 0) return std::nullopt;
  prefix.host = head.substr(0, colon);
  if (prefix.host.find(' ') != absl::string_view::npos) return std::nullopt;
  head.remove_prefix(colon + 1);
  int64_t tid = 0;
  if (!TakeNumber(&head, &prefix.pid) || !absl::ConsumePrefix(&head, ":") || !TakeNumber(&head, &tid) ||
      !absl::ConsumePrefix(&head, " [")) {
    return std::nullopt;
  }
  absl::ConsumePrefix(&head, "-");
  int device = 0;
  if (!TakeNumber(&head, &device) || !absl::ConsumePrefix(&head, "]")) return std::nullopt;
  return prefix;
}

// "7[7]", "0[1b000]": rank[device].
bool TakeRank(absl::string_view* text) {
  int rank = 0;
  if (!TakeNumber(text, &rank)) return false;
  if (!absl::ConsumePrefix(text, "[")) return true;
  const size_t end = text->find(']');
  if (end == absl::string_view::npos) return false;
  text->remove_prefix(end + 1);
  return true;
}

// "[0]mlx5_0:1/IB [1]={[0] mlx5_1:1/IB, [1] mlx5_2:1/IB} [RO]; OOB eth0:10.0.0.1<0>" -> the entries, and the
// OOB.
std::vector<std::string> ParseDeviceList(absl::string_view text, std::string* oob) {
  std::vector<std::string> devices;
  if (const size_t at = text.find("OOB "); at != absl::string_view::npos) {
    if (oob != nullptr) *oob = Cut(absl::StripAsciiWhitespace(text.substr(at + 4)));
    text = text.substr(0, at);
  }
  size_t at = text.find('[');
  while (at != absl::string_view::npos && devices.size() < kMaxDevices) {
    absl::string_view rest = text.substr(at + 1);
    uint32_t number = 0;
    if (!TakeNumber(&rest, &number) || !absl::ConsumePrefix(&rest, "]")) break;  // [RO]
    size_t end = 0;
    if (absl::ConsumePrefix(&rest, "={")) {
      end = rest.find('}');
      std::string merged(rest.substr(0, end));
      for (size_t i = merged.find('['); i != std::string::npos; i = merged.find('[')) {
        const size_t close = merged.find("] ", i);
        if (close == std::string::npos) break;
        merged.erase(i, close + 2 - i);
      }
      devices.push_back(Cut(merged));
    } else {
      end = rest.find_first_of(" ;");
      devices.push_back(Cut(rest.substr(0, end)));
    }
    if (end == absl::string_view::npos) break;
    rest.remove_prefix(end);
    text = rest;
    at = text.find('[');
  }
  return devices;
}

// The name of the card or interface in an entry of a list: "mlx5_0:1/IB" -> "mlx5_0:1", "eth0:10.0.0.1<0>" ->
// "eth0".
std::string DeviceName(const std::string& entry, bool socket) {
  return entry.substr(0, entry.find(socket ? ':' : '/'));
}

template <typename Map, typename Key>
auto* Bounded(Map* map, const Key& key) {
  using Value = typename Map::mapped_type;
  const auto found = map->find(key);
  if (found != map->end()) return &found->second;
  return map->size() < kMaxNames ? &map->emplace(key, Value{}).first->second : static_cast<Value*>(nullptr);
}

struct Pattern {
  const char* text;
  LogCause cause;
};
// In this order: the first that a text contains.
constexpr Pattern kPatterns[] = {
    {"no socket interface found", LogCause::kNoInterface},
    {"is neither AF_INET", LogCause::kNoInterface},
    {"Failed to open libibverbs", LogCause::kNoVerbs},
    {"Connection closed by remote peer", LogCause::kPeerGone},
    {"IBV_WC_RETRY_EXC_ERR", LogCause::kIbTimeout},
    {"with status=12 ", LogCause::kIbTimeout},
    {"with error 12,", LogCause::kIbTimeout},
    {"ibv_modify_qp failed", LogCause::kIbConnect},
    {"async fatal event", LogCause::kLinkFlap},
    {"GID table changed", LogCause::kLinkFlap},
    {"Attempted to connect incompatible devices", LogCause::kIncompatible},
    {"Duplicate GPU detected", LogCause::kDuplicateGpu},
    {"Multiple ranks detected using the same GPU", LogCause::kDuplicateGpu},
    {"Multiple Ranks are using the same GPU", LogCause::kDuplicateGpu},
    {"Failed to initialize any NET plugin", LogCause::kNoPlugin},
    {"No space left on device", LogCause::kShmFull},
    {"posix_fallocate", LogCause::kShmFull},
    {"ibv_reg_mr", LogCause::kLockedMemory},
    {"Failed to bind NVLink SHARP", LogCause::kNvls},
    {"NVLS", LogCause::kNvls},
};

LogCause CauseOf(absl::string_view text) {
  for (const Pattern& pattern : kPatterns) {
    if (absl::StrContains(text, pattern.text)) return pattern.cause;
  }
  return LogCause::kUnknown;
}

bool TakeAfter(absl::string_view text, absl::string_view word, int* number) {
  const size_t at = text.find(word);
  if (at == absl::string_view::npos) return false;
  absl::string_view rest = text.substr(at + word.size());
  return TakeNumber(&rest, number);
}

}  // namespace

const char* Word(HopKind kind) {
  switch (kind) {
    case HopKind::kNet:
      return "network";
    case HopKind::kP2p:
      return "P2P";
    case HopKind::kShm:
      return "SHM";
    case HopKind::kNvls:
      return "NVLS";
    case HopKind::kCollNet:
      return "CollNet";
  }
  return "";
}

const char* Advice(LogCause cause) {
  switch (cause) {
    case LogCause::kUnknown:
      return "";
    case LogCause::kNoInterface:
      return "NCCL_SOCKET_IFNAME matches no interface of this node";
    case LogCause::kNoVerbs:
      return "libibverbs is missing: install rdma-core in the image";
    case LogCause::kPeerGone:
      return "the peer ended first: look at its log";
    case LogCause::kIbTimeout:
      return "the peer's port did not answer: check the cable and the peer; with RoCE check the GID and PFC";
    case LogCause::kIbConnect:
      return "the queue pair could not be connected: with RoCE check the GIDs of both sides";
    case LogCause::kLinkFlap:
      return "a port went down and up: check the cable and the switch";
    case LogCause::kIncompatible:
      return "InfiniBand and RoCE ports are mixed: name those of one kind in NCCL_IB_HCA";
    case LogCause::kDuplicateGpu:
      return "two ranks use one GPU: choose the device by LOCAL_RANK";
    case LogCause::kNoPlugin:
      return "NCCL_NET names a network that this node or container does not have";
    case LogCause::kShmFull:
      return "/dev/shm is full: --shm-size=1g or more; remove stale /dev/shm/nccl-*";
    case LogCause::kLockedMemory:
      return "locked memory is limited: LimitMEMLOCK=infinity for the agent";
    case LogCause::kNvls:
      return "NVLink SHARP: check nvidia-fabricmanager and reset the GPUs, or NCCL_NVLS_ENABLE=0";
  }
  return "";
}

int NcclVersionNumber(absl::string_view version) {
  const std::vector<absl::string_view> fields = absl::StrSplit(version.substr(0, version.find('+')), '.');
  std::array<int, 3> number{};
  if (fields.size() < 2 || fields.size() > 4) return 0;
  for (size_t i = 0; i < number.size() && i < fields.size(); ++i) {
    if (!absl::SimpleAtoi(fields[i], &number[i]) || number[i] < 0 || number[i] > 99) return 0;
  }
  const bool old = number[0] < 2 || (number[0] == 2 && number[1] <= 8);
  return old ? number[0] * 1000 + number[1] * 100 + number[2]
             : number[0] * 10000 + number[1] * 100 + number[2];
}

void LogParser::Feed(absl::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const absl::string_view piece = bytes.substr(0, end);
    if (partial_.size() + piece.size() > kMaxLine) skipping_ = true;
    if (skipping_) {
      partial_.clear();
    } else if (end != absl::string_view::npos && partial_.empty()) {
      Line(piece);
    } else {
      partial_.append(piece.data(), piece.size());
      if (end != absl::string_view::npos) Line(partial_);
    }
    if (end == absl::string_view::npos) return;
    if (skipping_) ++log_.lines, ++log_.lines_not_nccl;
    skipping_ = false;
    partial_.clear();
    bytes.remove_prefix(end + 1);
  }
}

void LogParser::Finish() {
  if (!partial_.empty() && !skipping_) Line(partial_);
  partial_.clear();
  skipping_ = false;
}

void LogParser::Line(absl::string_view line) {
  ++log_.lines;
  if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
  // At the levels VERSION and WARN this line has no prefix.
  if (absl::ConsumePrefix(&line, "NCCL version ")) {
    log_.version = Cut(line);
    return;
  }
  const std::optional<Prefix> prefix = ParsePrefix(line);
  if (!prefix) {
    if (!line.empty()) ++log_.lines_not_nccl;
    return;
  }
  log_.host = Cut(prefix->host);
  log_.pid = prefix->pid;
  if (prefix->warn) {
    Warn(prefix->text);
  } else {
    Info(prefix->text);
  }
}

void LogParser::Warn(absl::string_view text) {
  std::string cut(text.substr(0, kMaxWarningText));
  const bool seen = std::any_of(log_.warnings.begin(), log_.warnings.end(),
                                [&](const LogWarning& one) { return one.text == cut; });
  if (seen) return;
  if (log_.warnings.size() == kMaxWarnings) {
    ++log_.warnings_left_out;
    return;
  }
  log_.warnings.push_back({CauseOf(text), std::move(cut)});
}

void LogParser::Info(absl::string_view text) {
  if (absl::StartsWith(text, "Channel ") || absl::StartsWith(text, "CollNet ")) return Channel(text);
  if (absl::ConsumePrefix(&text, "NCCL version ")) {
    log_.version = Cut(text);
  } else if (absl::ConsumePrefix(&text, "Bootstrap : Using ") ||
             absl::ConsumePrefix(&text, "Bootstrap: Using ")) {
    if (absl::StartsWith(text, "[")) text = text.substr(std::min(text.find(']'), text.size() - 1) + 1);
    log_.bootstrap = Cut(text);
  } else if (absl::StartsWith(text, "NET/IB : No device found")) {
    log_.no_ib_device = true;
  } else if (absl::ConsumePrefix(&text, "NET/IB : Using ")) {
    // Without a device the line still comes, empty, since 2.24.3.
    log_.ib_ports = ParseDeviceList(text, &log_.oob);
  } else if (absl::ConsumePrefix(&text, "NET/Socket : Using ")) {
    log_.socket_ports = ParseDeviceList(text, nullptr);
  } else if (absl::ConsumePrefix(&text, "NET/IB : Made virtual device [")) {
    uint32_t number = 0;
    if (!TakeNumber(&text, &number) || !absl::ConsumePrefix(&text, "] name=")) return;
    if (log_.virtual_devices.size() < kMaxDevices)
      log_.virtual_devices[number] = Cut(text.substr(0, text.find(' ')));
  } else if (absl::ConsumePrefix(&text, "Using network ")) {
    log_.network = Cut(text);
  } else if (absl::StartsWith(text, "Connected all rings") || absl::StartsWith(text, "Connected all trees")) {
    log_.connected = true;
  } else if (absl::StartsWith(text, "NVLS multicast support is available")) {
    log_.nvls = true;
  } else if (absl::StartsWith(text, "Pattern 4, ")) {
    // "Pattern 4, crossNic 0, nChannels 8, bw 20.0/20.0, type NVL/PIX, sameChannels 1"
    if (const size_t at = text.find(", type "); at != absl::string_view::npos) {
      const absl::string_view types = text.substr(at + 7, text.find(',', at + 7) - at - 7);
      log_.path_inside = Cut(types.substr(0, types.find('/')));
      log_.path_outside =
          types.find('/') == absl::string_view::npos ? "" : Cut(types.substr(types.find('/') + 1));
    }
  } else if (absl::StrContains(text, "comm 0x")) {
    Communicator(text);
  } else if (const size_t at = text.find(" set by environment to "); at != absl::string_view::npos) {
    std::string value(absl::StripSuffix(text.substr(at + 23), "."));
    // NCCL_IB_DISABLE and others are followed by a full stop, some texts by more.
    if (std::string* slot = Bounded(&log_.env, Cut(text.substr(0, at)))) *slot = Cut(value);
  } else if (CauseOf(text) == LogCause::kNoVerbs || CauseOf(text) == LogCause::kPeerGone) {
    Warn(text);  // INFO in NCCL, but nothing else says it
  }
}

// "[fn ]comm 0x... rank 0 nranks 16 ... - Init START" and "comm 0x... rank 3 nRanks 4 nNodes 4 localRanks 1
// ...".
void LogParser::Communicator(absl::string_view text) {
  int rank = 0, nranks = 0;
  if (!TakeAfter(text, " rank ", &rank)) return;
  const bool layout = TakeAfter(text, " nRanks ", &nranks);
  if (!layout && !TakeAfter(text, " nranks ", &nranks)) return;
  if (nranks < log_.nranks) return;  // a group within the job
  log_.rank = rank;
  log_.nranks = nranks;
  if (!layout) return;
  TakeAfter(text, " nNodes ", &log_.nnodes);
  TakeAfter(text, " localRanks ", &log_.local_ranks);
}

// "Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3(5)/GDRDMA(PCI)/Shared".
void LogParser::Channel(absl::string_view text) {
  const bool collnet = absl::ConsumePrefix(&text, "CollNet ");
  if (!collnet) absl::ConsumePrefix(&text, "Channel ");
  uint32_t channel = 0, connection = 0;
  if (!TakeNumber(&text, &channel)) return;
  if (absl::ConsumePrefix(&text, "/") && !TakeNumber(&text, &connection)) return;
  if (!absl::ConsumePrefix(&text, " : ") || !TakeRank(&text)) return;
  if (!collnet && (!absl::ConsumePrefix(&text, " -> ") || !TakeRank(&text))) return;
  absl::ConsumePrefix(&text, " ");
  if (!absl::ConsumePrefix(&text, "[send] ")) absl::ConsumePrefix(&text, "[receive] ");
  if (!absl::ConsumePrefix(&text, "via ")) return;
  if (absl::ConsumePrefix(&text, "NET/")) return NetHop(text);
  if (absl::ConsumePrefix(&text, "P2P/")) {
    ++log_.hops[HopKind::kP2p].channels;
    const absl::string_view kind = text.substr(0, text.find('/'));
    if (uint32_t* count = Bounded(&log_.p2p_kinds, Cut(kind))) ++*count;
  } else if (absl::StartsWith(text, "SHM/")) {
    ++log_.hops[HopKind::kShm].channels;
  } else if (absl::StartsWith(text, "COLLNET/")) {
    ++log_.hops[HopKind::kCollNet].channels;
  } else if (absl::StartsWith(text, "NVLS")) {
    ++log_.hops[HopKind::kNvls].channels;
  }
}

// "IB/3(5)/GDRDMA(PCI)/Shared", "Socket/0": the number is that of the list of devices, beyond it a virtual
// device.
void LogParser::NetHop(absl::string_view via) {
  const size_t slash = via.find('/');
  if (slash == absl::string_view::npos) return;
  const absl::string_view network = via.substr(0, slash);
  via.remove_prefix(slash + 1);
  uint32_t number = 0;
  if (!TakeNumber(&via, &number)) return;
  const bool gdr = absl::StrContains(via, "/GDRDMA");
  const bool socket = network == "Socket";
  const std::vector<std::string>& list = socket ? log_.socket_ports : log_.ib_ports;
  std::string name = absl::StrCat(Cut(network), "/", number);
  if (const auto found = log_.virtual_devices.find(number); !socket && found != log_.virtual_devices.end()) {
    name = found->second;
  } else if ((socket || network == "IB") && number < list.size()) {
    name = DeviceName(list[number], socket);
  }
  HopUse& hop = log_.hops[HopKind::kNet];
  ++hop.channels;
  hop.gdr += gdr ? 1 : 0;
  if (log_.network.empty()) log_.network = Cut(network);
  if (HopUse* use = Bounded(&log_.nics, name)) {
    ++use->channels;
    use->gdr += gdr ? 1 : 0;
  }
}

}  // namespace dgxrun::nccl
