#include "launcher/nccl/versions.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace dgxrun::nccl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxMapsBytes = 8 << 20;  // a Python with torch has some 3,000 lines of 150 bytes
constexpr size_t kMaxSmallFile = 1 << 16;
constexpr size_t kMaxPackages = 4096;  // of a site-packages folder

std::string ReadText(const fs::path& path, size_t limit, bool* ok) {
  std::ifstream file(path);
  *ok = file.good();
  std::string text;
  char piece[1 << 14];
  while (text.size() < limit && (file.read(piece, sizeof(piece)), file.gcount() > 0)) {
    text.append(piece, static_cast<size_t>(file.gcount()));
  }
  return text;
}

std::string ReadSmall(const fs::path& path) {
  bool ok = false;
  return ReadText(path, kMaxSmallFile, &ok);
}

// A version of digits and dots at the beginning.
std::string VersionAt(absl::string_view text) {
  size_t size = 0;
  while (size < text.size() &&
         (absl::ascii_isdigit(static_cast<unsigned char>(text[size])) || text[size] == '.')) {
    ++size;
  }
  while (size > 0 && text[size - 1] == '.') --size;
  return std::string(text.substr(0, size));
}

// Of the wheel that brought .../site-packages/nvidia/nccl/lib/libnccl.so.2:
// nvidia_nccl_cu12-2.28.9.dist-info.
std::string WheelVersion(const fs::path& packages) {
  std::error_code error;
  fs::directory_iterator it(packages, error);
  size_t seen = 0;
  for (; !error && it != fs::directory_iterator() && ++seen < kMaxPackages; it.increment(error)) {
    const std::string name = it->path().filename();
    if (!absl::StartsWith(name, "nvidia_nccl_cu") || !absl::EndsWith(name, ".dist-info")) continue;
    const size_t dash = name.find('-');
    if (dash != std::string::npos) return VersionAt(name.substr(dash + 1));
  }
  return "";
}

std::string NcclVersionOf(const fs::path& root, const std::string& path) {
  const std::string name = fs::path(path).filename();
  const std::string from_name =
      VersionAt(name.substr(std::min(name.size(), std::string("libnccl.so.").size())));
  if (absl::StrContains(from_name, '.')) return from_name;  // libnccl.so.2.28.9, as distributions have it
  const fs::path folder = fs::path(path).parent_path();
  if (absl::EndsWith(folder.string(), "nvidia/nccl/lib")) {
    return WheelVersion(root / folder.parent_path().parent_path().parent_path().relative_path());
  }
  // A link beside it, or the header, as in NVIDIA's images.
  std::error_code error;
  const fs::path target = fs::read_symlink(root / fs::path(path).relative_path(), error);
  return error ? ""
               : VersionAt(absl::StrCat(target.filename().string())
                               .substr(std::min<size_t>(target.filename().string().size(),
                                                        std::string("libnccl.so.").size())));
}

// "__version__ = '2.11.0+cu130'", "cuda: Optional[str] = None".
bool Assigned(absl::string_view line, absl::string_view name, std::string* value) {
  if (!absl::ConsumePrefix(&line, name)) return false;
  if (line.empty() || (line[0] != ' ' && line[0] != ':' && line[0] != '=')) return false;
  const size_t equals = line.rfind('=');
  if (equals == absl::string_view::npos) return false;
  absl::string_view text = absl::StripAsciiWhitespace(line.substr(equals + 1));
  if (text.size() >= 2 && (text[0] == '\'' || text[0] == '"') && text.back() == text[0]) {
    text = text.substr(1, text.size() - 2);
  }
  if (text.size() > 64) return false;
  *value = std::string(text);
  return true;
}

int Major(absl::string_view version) {
  int major = 0;
  return absl::SimpleAtoi(version.substr(0, version.find('.')), &major) ? major : 0;
}

}  // namespace

std::vector<std::string> MappedFiles(absl::string_view maps) {
  std::vector<std::string> files;
  std::set<std::string> seen;
  for (absl::string_view line : absl::StrSplit(maps, '\n')) {
    // address perms offset dev inode path; the path is the only field with a slash.
    const size_t slash = line.find('/');
    if (slash == absl::string_view::npos || files.size() == kMaxMapped) continue;
    std::string path(absl::StripSuffix(line.substr(slash), " (deleted)"));
    if (seen.insert(path).second) files.push_back(std::move(path));
  }
  return files;
}

void ParseTorchVersion(absl::string_view text, RankVersions* versions) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    std::string value;
    if (Assigned(line, "__version__", &value)) {
      versions->torch = value;
    } else if (Assigned(line, "cuda", &value)) {
      versions->torch_cuda = value == "None" ? "none" : value;
    }
  }
}

std::string ParseDriverVersion(absl::string_view text) {
  if (const size_t at = text.find("Kernel Module"); at != absl::string_view::npos) {
    // "Kernel Module  580.65.06", and of the open one "Open Kernel Module for x86_64  580.65.06".
    for (absl::string_view word : absl::StrSplit(text.substr(at, text.find('\n', at) - at), ' ')) {
      const std::string version = VersionAt(word);
      if (version.size() == word.size() && absl::StrContains(version, '.')) return version;
    }
    return "";
  }
  return VersionAt(absl::StripLeadingAsciiWhitespace(text));
}

RankVersions ReadRankVersions(const std::string& proc, const std::string& sysfs, int pid) {
  RankVersions versions;
  const fs::path process = fs::path(proc) / absl::StrCat(pid);
  const std::string maps = ReadText(process / "maps", kMaxMapsBytes, &versions.reads_done);
  const fs::path root = process / "root";
  for (const std::string& path : MappedFiles(maps)) {
    const std::string name = fs::path(path).filename();
    if (versions.nccl_path.empty() && absl::StartsWith(name, "libnccl.so")) {
      versions.nccl_path = path;
      versions.nccl = NcclVersionOf(root, path);
    }
    // torch/lib/libtorch_cpu.so is there in every build.
    if (versions.torch_path.empty() && absl::StartsWith(name, "libtorch_cpu.so")) {
      const fs::path folder = fs::path(path).parent_path().parent_path();
      versions.torch_path = folder;
      ParseTorchVersion(ReadSmall(root / folder.relative_path() / "version.py"), &versions);
    }
  }
  versions.driver = ParseDriverVersion(ReadSmall(fs::path(proc) / "driver/nvidia/version"));
  if (versions.driver.empty())
    versions.driver = ParseDriverVersion(ReadSmall(fs::path(sysfs) / "module/nvidia/version"));
  return versions;
}

int LowestDriver(absl::string_view cuda) {
  switch (Major(cuda)) {  // CUDA's release notes, table of minor version compatibility
    case 11:
      return 450;
    case 12:
      return 525;
    case 13:
      return 580;
    default:
      return 0;
  }
}

std::vector<VersionFinding> CompareVersions(const std::vector<NodeVersions>& nodes) {
  std::vector<VersionFinding> found;
  std::map<std::string, VersionFinding> by_text;
  const auto add = [&](const char* rule, const std::string& node, const std::string& message,
                       const std::string& fix) {
    VersionFinding& one = by_text[absl::StrCat(rule, "\n", message)];
    if (one.rule.empty()) one = {rule, {}, message, fix};
    if (one.nodes.empty() || one.nodes.back() != node) one.nodes.push_back(node);
  };
  std::map<std::string, std::map<std::string, std::vector<std::string>>> kinds;  // what -> version -> nodes
  const auto note = [&](const char* what, const std::string& version, const std::string& node) {
    if (version.empty()) return;
    std::vector<std::string>& names = kinds[what][version];
    if (names.empty() || names.back() != node) names.push_back(node);
  };
  for (const NodeVersions& node : nodes) {
    for (const RankVersions& rank : node.ranks) {
      if (node.has_gpus && rank.torch_cuda == "none") {
        add("cpu-torch", node.node,
            absl::StrCat("torch ", rank.torch, " is built for CPUs only, on a node with GPUs"),
            absl::StrCat("install a CUDA build of torch in ", rank.torch_path));
      }
      const int lowest = LowestDriver(rank.torch_cuda);
      if (lowest > 0 && Major(rank.driver) > 0 && Major(rank.driver) < lowest) {
        add("old-driver", node.node,
            absl::StrCat("driver ", rank.driver, " is too old for torch ", rank.torch, " (CUDA ",
                         rank.torch_cuda, " needs ", lowest, " or newer)"),
            "update the driver, or install a torch of an older CUDA");
      }
      note("NCCL", rank.nccl, node.node);
      note("torch", rank.torch, node.node);
      note("the driver", rank.driver, node.node);
    }
  }
  for (auto& [text, finding] : by_text) found.push_back(std::move(finding));
  for (const auto& [what, versions] : kinds) {
    if (versions.size() < 2) continue;
    VersionFinding finding{"differs", {}, "", "use the same environment on all nodes"};
    std::vector<std::string> parts;
    for (const auto& [version, names] : versions) {
      parts.push_back(absl::StrCat(
          version, " on ",
          names.size() <= 4 ? absl::StrJoin(names, ", ") : absl::StrCat(names.size(), " nodes")));
      finding.nodes.insert(finding.nodes.end(), names.begin(), names.end());
    }
    finding.message = absl::StrCat("versions of ", what, " differ: ", absl::StrJoin(parts, "; "));
    found.push_back(std::move(finding));
  }
  return found;
}

}  // namespace dgxrun::nccl
