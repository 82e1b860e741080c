#include "agent/driver_files.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace dgxrun::agent {
namespace {

constexpr size_t kMostLines = 64;  // the file has some ten

using Fields = std::map<std::string, std::string>;

// "Model: \t\t NVIDIA H200" and so on; empty: there is no such file.
Fields ReadFields(const std::string& path) {
  std::ifstream file(path);
  Fields fields;
  std::string line;
  for (size_t i = 0; i < kMostLines && std::getline(file, line); ++i) {
    const std::pair<std::string, std::string> field = absl::StrSplit(line, absl::MaxSplits(':', 1));
    fields[std::string(absl::StripAsciiWhitespace(field.first))] =
        std::string(absl::StripAsciiWhitespace(field.second));
  }
  return fields;
}

bool IsDigits(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

// "GPU-????????-..." until somebody has opened the device.
bool IsUuid(const std::string& text) {
  return absl::StartsWith(text, "GPU-") && text.find('?') == std::string::npos;
}

// "570.86.15" of the file behind libnvidia-ml.so.1; empty: its name does not say.
absl::StatusOr<std::string> LibraryVersion(const std::string& library) {
  const std::unique_ptr<void, int (*)(void*)> handle(dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL),
                                                     dlclose);
  link_map* map = nullptr;
  if (handle == nullptr || dlinfo(handle.get(), RTLD_DI_LINKMAP, &map) != 0)
    return absl::NotFoundError(absl::StrCat(library, " cannot be opened"));
  std::error_code error;
  const std::string name = std::filesystem::canonical(map->l_name, error).filename();
  const size_t at = name.find(".so.");
  if (error || at == std::string::npos) return "";
  const std::string version = name.substr(at + 4);
  return absl::StrContains(version, '.') && IsDigits(absl::StrReplaceAll(version, {{".", ""}})) ? version
                                                                                                : "";
}

absl::Status CheckLibrary(const DriverFiles& files) {
  const absl::StatusOr<std::string> library = LibraryVersion(files.library);
  if (!library.ok()) return library.status();
  std::ifstream file(files.root + "/sys/module/nvidia/version");
  std::string module;
  std::getline(file, module);
  if (library->empty() || module.empty() || *library == module) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the driver is ", module, ", its library ", *library));
}

}  // namespace

absl::StatusOr<std::vector<DriverGpu>> ReadDriverFiles(const std::vector<std::string>& pci,
                                                       const DriverFiles& files) {
  std::vector<DriverGpu> gpus;
  for (const std::string& address : pci) {
    const Fields fields =
        ReadFields(absl::StrCat(files.root, "/proc/driver/nvidia/gpus/", address, "/information"));
    const auto get = [&](const char* name) {
      const auto it = fields.find(name);
      return it == fields.end() ? std::string() : it->second;
    };
    const std::string minor = get("Device Minor");
    if (fields.empty()) continue;
    if (!IsDigits(minor)) return absl::UnavailableError(absl::StrCat(address, " has no device number"));
    const std::string node = absl::StrCat(files.root, "/dev/nvidia", minor);
    if (get("GPU Excluded") == "Yes" || access(node.c_str(), R_OK | W_OK) != 0) continue;
    DriverGpu gpu;
    gpu.pci = address;
    gpu.uuid = get("GPU UUID");
    gpu.model = get("Model");
    if (!IsUuid(gpu.uuid)) return absl::UnavailableError(absl::StrCat(address, " has no UUID yet"));
    gpus.push_back(std::move(gpu));
  }
  if (gpus.empty()) return absl::NotFoundError("no GPU is usable by the driver's files");
  if (absl::Status fits = CheckLibrary(files); !fits.ok()) return fits;
  return gpus;
}

}  // namespace dgxrun::agent
