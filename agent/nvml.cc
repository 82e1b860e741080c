#include "agent/nvml.h"

#include <dlfcn.h>

#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dgxrun::agent {
namespace {

// The few declarations of NVML's stable C interface that are used here (nvml.h, "_v2"/"_v3" entry points
// exist since CUDA 11 drivers).
using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
constexpr int kSuccess = 0;
constexpr unsigned int kTextBytes = 96;  // NVML_DEVICE_NAME_V2_BUFFER_SIZE and the UUID's size

struct Library {
  explicit Library(void* handle) : handle(handle) {}
  ~Library() { dlclose(handle); }
  template <class F>
  bool Find(const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(handle, name));
    if (*function == nullptr) missing = name;
    return *function != nullptr;
  }
  void* handle;
  const char* missing = nullptr;

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*by_index)(unsigned int, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned int) = nullptr;
  int (*name)(Device, char*, unsigned int) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*pci)(Device, PciInfo*) = nullptr;
  const char* (*error_string)(int) = nullptr;

  bool FindAll() {
    return Find("nvmlInit_v2", &init) && Find("nvmlShutdown", &shutdown) &&
           Find("nvmlDeviceGetCount_v2", &count) && Find("nvmlDeviceGetHandleByIndex_v2", &by_index) &&
           Find("nvmlDeviceGetUUID", &uuid) && Find("nvmlDeviceGetName", &name) &&
           Find("nvmlDeviceGetMemoryInfo", &memory) && Find("nvmlDeviceGetPciInfo_v3", &pci) &&
           Find("nvmlErrorString", &error_string);
  }
  absl::Status Failed(const char* call, int rc) const {
    return absl::UnavailableError(absl::StrCat(call, ": ", error_string(rc)));
  }
};

absl::StatusOr<DriverGpu> ReadOne(const Library& nvml, unsigned int index) {
  Device device = nullptr;
  PciInfo pci{};
  Memory memory{};
  std::array<char, kTextBytes> text{};
  DriverGpu gpu;
  if (int rc = nvml.by_index(index, &device); rc != kSuccess) {
    return nvml.Failed(absl::StrCat("nvmlDeviceGetHandleByIndex(", index, ")").c_str(), rc);
  }
  if (int rc = nvml.pci(device, &pci); rc != kSuccess) return nvml.Failed("nvmlDeviceGetPciInfo", rc);
  // A GPU is always function 0.
  gpu.pci = absl::StrFormat("%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
  if (int rc = nvml.uuid(device, text.data(), kTextBytes); rc != kSuccess) {
    return nvml.Failed(absl::StrCat("nvmlDeviceGetUUID of ", gpu.pci).c_str(), rc);
  }
  gpu.uuid = text.data();
  if (nvml.name(device, text.data(), kTextBytes) == kSuccess) gpu.model = text.data();
  if (nvml.memory(device, &memory) == kSuccess) gpu.memory_bytes = memory.total;
  return gpu;
}

}  // namespace

absl::StatusOr<std::vector<DriverGpu>> ReadNvml(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return absl::NotFoundError(absl::StrCat(path, " cannot be opened: ", why == nullptr ? "unknown" : why));
  }
  Library nvml(handle);
  if (!nvml.FindAll()) return absl::UnavailableError(absl::StrCat(path, " has no ", nvml.missing));
  if (int rc = nvml.init(); rc != kSuccess) return nvml.Failed("nvmlInit", rc);
  const std::unique_ptr<Library, void (*)(Library*)> session(&nvml, [](Library* l) { l->shutdown(); });
  unsigned int count = 0;
  if (int rc = nvml.count(&count); rc != kSuccess) return nvml.Failed("nvmlDeviceGetCount", rc);
  std::vector<DriverGpu> gpus;
  for (unsigned int i = 0; i < count; ++i) {
    absl::StatusOr<DriverGpu> gpu = ReadOne(nvml, i);
    if (!gpu.ok()) return gpu.status();
    gpus.push_back(*std::move(gpu));
  }
  return gpus;
}

}  // namespace dgxrun::agent
