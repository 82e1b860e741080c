// Sets of CPUs or NUMA nodes and how the kernel writes them: "0-15,128-143". Always ascending, each number
// once.
#ifndef DGXRUN_LAUNCHER_BINDING_CPU_LIST_H_
#define DGXRUN_LAUNCHER_BINDING_CPU_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dgxrun {

using CpuList = std::vector<uint32_t>;

// The kernel's NR_CPUS stays far below; a list with more is not one of CPUs.
inline constexpr uint32_t kMaxCpu = (1 << 16) - 1;

// Blanks around a part are allowed, as is "". Errors name the part that is wrong.
absl::StatusOr<CpuList> ParseCpuList(absl::string_view text);
std::string FormatCpuList(const CpuList& list);

CpuList Normalized(CpuList list);
CpuList Intersection(const CpuList& a, const CpuList& b);
CpuList Union(const CpuList& a, const CpuList& b);
bool Contains(const CpuList& list, uint32_t number);

// Of a topology that ReadTopology made, whose lists are well formed: one that is not reads as empty.
CpuList ListOf(absl::string_view text);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BINDING_CPU_LIST_H_
