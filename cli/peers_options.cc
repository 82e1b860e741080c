#include "cli/peers_options.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/command_line.h"

namespace dgxrun::cli {
namespace {

// Heartbeats come each second and a busy machine stalls for some of them; less would kill healthy ranks.
constexpr absl::Duration kShortestOrphanTimeout = absl::Seconds(5);

absl::Status BadOption(const std::string& text) { return absl::InvalidArgumentError(text); }

absl::Status ParseEndpoint(const std::string& word, PeersOptions* options) {
  std::string host = word, port;
  if (!word.empty() && word[0] == '[') {
    const size_t close = word.find(']');
    if (close == std::string::npos)
      return BadOption(absl::StrCat("--rdzv-endpoint ", word, ": no ] after ["));
    host = word.substr(1, close - 1);
    port = word.substr(close + 1);
    if (!port.empty() && port[0] != ':')
      return BadOption(absl::StrCat("--rdzv-endpoint ", word, ": write [ADDRESS]:PORT"));
    if (!port.empty()) port = port.substr(1);
  } else if (const size_t colon = word.find(':'); colon != std::string::npos && word.rfind(':') == colon) {
    host = word.substr(0, colon);
    port = word.substr(colon + 1);
    if (port.empty()) return BadOption(absl::StrCat("--rdzv-endpoint ", word, ": no port after the colon"));
  }  // more than one colon: an IPv6 address
  if (host.empty()) return BadOption(absl::StrCat("--rdzv-endpoint ", word, ": write HOST or HOST:PORT"));
  options->host = host;
  if (port.empty()) return absl::OkStatus();
  // The ports behind it are MASTER_PORT's.
  if (!absl::SimpleAtoi(port, &options->port) || options->port == 0 || options->port > 65535 - kMasterPorts) {
    return BadOption(
        absl::StrCat("--rdzv-endpoint ", word, ": the port must be 1 to ", 65535 - kMasterPorts));
  }
  return absl::OkStatus();
}

absl::Status ParseTime(const char* option, const std::string& word, absl::Duration* into) {
  if (word.empty()) return absl::OkStatus();
  auto time = ParseDurationWord(word);
  if (!time.ok()) return BadOption(absl::StrCat(option, ": ", std::string(time.status().message())));
  *into = *time;
  return absl::OkStatus();
}

}  // namespace

std::string PeersOptions::endpoint() const {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<std::optional<PeersOptions>> ParsePeers(const PeersWords& words) {
  if (words.endpoint.empty()) {
    const std::pair<const char*, const std::string*> others[] = {{"--rdzv-id", &words.rdzv_id},
                                                                 {"--node-rank", &words.node_rank},
                                                                 {"--orphan-timeout", &words.orphan_timeout},
                                                                 {"--join-timeout", &words.join_timeout}};
    for (const auto& [name, word] : others) {
      if (!word->empty()) return BadOption(absl::StrCat(name, " needs --rdzv-endpoint HOST:PORT"));
    }
    return std::nullopt;
  }
  PeersOptions options;
  if (absl::Status parsed = ParseEndpoint(words.endpoint, &options); !parsed.ok()) return parsed;
  if (!words.backend.empty() && words.backend != "c10d" && words.backend != "static") {
    return BadOption(
        absl::StrCat("--rdzv-backend ", words.backend, ": c10d and static are known, and mean the same"));
  }
  if (!words.rdzv_id.empty()) options.rdzv_id = words.rdzv_id;
  if (!words.node_rank.empty()) {
    uint32_t rank = 0;
    if (!absl::SimpleAtoi(words.node_rank, &rank)) {
      return BadOption(absl::StrCat("--node-rank ", words.node_rank, ": not a number from 0"));
    }
    options.node_rank = rank;
  }
  for (const auto& [option, word, into] :
       {std::tuple<const char*, const std::string&, absl::Duration*>{"--orphan-timeout", words.orphan_timeout,
                                                                     &options.orphan_timeout},
        {"--join-timeout", words.join_timeout, &options.join_timeout}}) {
    if (absl::Status parsed = ParseTime(option, word, into); !parsed.ok()) return parsed;
  }
  if (options.orphan_timeout < kShortestOrphanTimeout) {
    return BadOption(absl::StrCat("--orphan-timeout ", words.orphan_timeout, ": at least ",
                                  absl::FormatDuration(kShortestOrphanTimeout)));
  }
  return options;
}

absl::StatusOr<std::string> NodesWord(const std::string& nnodes) {
  const std::vector<std::string> ends = absl::StrSplit(nnodes, ':');
  if (ends.size() == 1) return nnodes;
  if (ends.size() == 2 && ends[0] == ends[1]) return ends[0];
  return BadOption(
      absl::StrCat("--nnodes ", nnodes, ": a job has a fixed number of nodes; write one number"));
}

}  // namespace dgxrun::cli
