// Values by themselves.
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/nccl/lint_rules.h"

namespace dgxrun::nccl {
namespace {

// Variables that NCCL reads as a number (nccl 2.28, NCCL_PARAM), with the values that make sense.
struct Number {
  const char* name;
  int64_t low, high;
};
constexpr Number kNumbers[] = {
    {"NCCL_IB_DISABLE", 0, 1},
    {"NCCL_P2P_DISABLE", 0, 1},
    {"NCCL_SHM_DISABLE", 0, 1},
    {"NCCL_NVLS_ENABLE", 0, 2},
    {"NCCL_RAS_ENABLE", 0, 1},
    {"NCCL_DMABUF_ENABLE", 0, 1},
    {"NCCL_CUMEM_ENABLE", -2, 1},
    {"NCCL_IB_TIMEOUT", 1, 31},
    {"NCCL_IB_RETRY_CNT", 0, 7},
    {"NCCL_IB_GID_INDEX", -1, 255},
    {"NCCL_CROSS_NIC", 0, 2},
    {"NCCL_IB_SL", 0, 15},
    {"NCCL_IB_TC", 0, 255},
    {"NCCL_IB_QPS_PER_CONNECTION", 1, 128},
    {"NCCL_IB_MERGE_NICS", 0, 1},
    {"NCCL_MIN_NCHANNELS", 1, 64},
    {"NCCL_MAX_NCHANNELS", 1, 64},
    {"NCCL_NSOCKS_PERTHREAD", 1, 64},
    {"NCCL_SOCKET_NTHREADS", 1, 16},
    {"NCCL_BUFFSIZE", 1, INT64_MAX},
    {"NCCL_IB_ROCE_VERSION_NUM", 1, 2},
};

// Names of PyTorch that once had this spelling: PyTorch still reads them, NCCL never did.
constexpr const char* kTorchNames[] = {"NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG",
                                       "NCCL_ENABLE_TIMING"};

constexpr const char* kDebugWords[] = {"VERSION", "WARN", "INFO", "ABORT", "TRACE"};
constexpr const char* kPathWords[] = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN",
                                      "PHB", "SYS", "0",   "1",   "2",   "3",   "4"};

void LintNumbers(const Environment& set, Findings* findings) {
  for (const Number& number : kNumbers) {
    const auto found = set.find(number.name);
    if (found == set.end() || found->second.empty()) continue;
    bool clean = false;
    const int64_t value = NcclNumber(found->second, &clean);
    if (!clean) {
      findings->Add(Severity::kError, "not-a-number", "",
                    absl::StrCat(number.name, "=", found->second, " is no number: NCCL reads it as ", value),
                    absl::StrCat("write a number, as in ", number.name, "=", number.high == 1 ? "1" : "0"));
    } else if (value < number.low || value > number.high) {
      findings->Add(
          Severity::kWarning, "out-of-range", "",
          absl::StrCat(number.name, "=", found->second, " is outside of ", number.low, " to ", number.high),
          number.name == absl::string_view("NCCL_IB_TIMEOUT")
              ? "20 gives up after 30 s, 22 after 2 min; 0 and 32 never do"
              : "");
    }
  }
}

template <size_t N>
bool OneOf(const std::string& value, const char* const (&words)[N], bool any_case) {
  for (const char* word : words) {
    if (any_case ? absl::EqualsIgnoreCase(value, word) : value == word) return true;
  }
  return false;
}

void LintList(const Environment& set, const char* name, Findings* findings) {
  const std::string value = ValueOf(set, name);
  if (value.empty()) return;
  if (absl::StartsWith(value, "=^")) {
    findings->Add(Severity::kError, "list-order", "",
                  absl::StrCat(name, "=", value, ": `^` comes before `=`"),
                  absl::StrCat("write ", name, "=^=", value.substr(2)));
  }
  if (value.find_first_of(" \t\"'") != std::string::npos) {
    findings->Add(Severity::kError, "list-blank", "",
                  absl::StrCat(name, "=\"", value,
                               "\" has a blank or a quote in it, which NCCL takes for a part of the name"),
                  "leave it out");
  }
  if (value.size() == 1) {
    findings->Add(Severity::kWarning, "list-short", "",
                  absl::StrCat(name, "=", value, " is not read: one character"), "");
  }
  for (size_t comma = value.find(','); comma != std::string::npos; comma = value.find(',', comma + 1)) {
    if (comma + 1 < value.size() && (value[comma + 1] == '=' || value[comma + 1] == '^')) {
      findings->Add(Severity::kError, "list-mark", "",
                    absl::StrCat(name, "=", value, ": a mark inside the list is taken for a part of a name"),
                    "one `^` or `=` at the beginning is for the whole list");
      break;
    }
  }
}

void LintWords(const Environment& set, Findings* findings) {
  const std::string debug = ValueOf(set, "NCCL_DEBUG");
  if (!debug.empty() && !OneOf(debug, kDebugWords, true)) {
    findings->Add(Severity::kWarning, "debug-word", "",
                  absl::StrCat("NCCL_DEBUG=", debug, " prints nothing at all"),
                  "use VERSION, WARN, INFO or TRACE");
  }
  const std::string gdr = ValueOf(set, "NCCL_NET_GDR_LEVEL");
  if (!gdr.empty() && !OneOf(gdr, kPathWords, false)) {
    findings->Add(Severity::kWarning, "path-word", "",
                  absl::StrCat("NCCL_NET_GDR_LEVEL=", gdr, " is no word that NCCL knows; it is ignored"),
                  "use LOC, PIX, PXB, PHB or SYS, in upper case");
  }
  const std::string family = ValueOf(set, "NCCL_SOCKET_FAMILY");
  if (!family.empty() && family != "AF_INET" && family != "AF_INET6") {
    findings->Add(Severity::kWarning, "family-word", "",
                  absl::StrCat("NCCL_SOCKET_FAMILY=", family, " is ignored"), "use AF_INET or AF_INET6");
  }
  if (absl::StartsWith(ValueOf(set, "NCCL_CONF_FILE"), "~")) {
    findings->Add(Severity::kWarning, "conf-path", "",
                  "NCCL_CONF_FILE begins with ~, which NCCL does not expand", "write the whole path");
  }
}

}  // namespace

void LintValues(const LintInput& input, Findings* findings) {
  const Environment& set = input.set;
  LintNumbers(set, findings);
  LintWords(set, findings);
  LintList(set, "NCCL_SOCKET_IFNAME", findings);
  LintList(set, "NCCL_IB_HCA", findings);
  if (set.contains("NCCL_TIMEOUT")) {
    findings->Add(Severity::kNote, "nccl-timeout", "",
                  "NCCL_TIMEOUT has no effect unless the script reads it: neither NCCL nor PyTorch does",
                  "use --nccl-timeout");
  }
  for (const char* name : kTorchNames) {
    if (!set.contains(name)) continue;
    findings->Add(Severity::kNote, "torch-name", "",
                  absl::StrCat(name, " is an old name of PyTorch's; NCCL never reads it"),
                  absl::StrCat("use TORCH_", name));
  }
  if (set.contains("NCCL_COMM_ID")) {
    findings->Add(Severity::kWarning, "comm-id", "",
                  "NCCL_COMM_ID makes NCCL ignore NCCL_SOCKET_IFNAME (and PyTorch does not use it)",
                  "unset it");
  }
  if (absl::EqualsIgnoreCase(ValueOf(set, "NCCL_RAS_ENABLE"), "0")) {
    findings->Add(Severity::kNote, "ras-off", "", "NCCL_RAS_ENABLE=0: a hang cannot be asked about", "");
  }
}

}  // namespace dgxrun::nccl
