#include "agent/ckpt/source.h"

#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

// Deeper paths than any checkpoint has; PATH_MAX bounds the bytes.
constexpr size_t kMaxPathBytes = 4096;

}  // namespace

void Source::SetBudget(const Budget& budget) { left_ = budget; }

absl::Status Source::Charge(uint64_t Counts::*kind, uint64_t calls, uint64_t bytes) {
  if (stopped_.load(std::memory_order_relaxed)) return absl::CancelledError("stopped");
  if (left_.calls < calls || left_.bytes < bytes) {
    return absl::ResourceExhaustedError("it takes more reading than is allowed");
  }
  left_.calls -= calls;
  left_.bytes -= bytes;
  counts_.*kind += calls;
  counts_.bytes += bytes;
  return absl::OkStatus();
}

bool StaysBeneath(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes) return false;
  if (path.find('\0') != std::string_view::npos) return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view name = path.substr(0, slash);
    if (name.empty() || name == "." || name == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

std::string JoinPath(std::string_view folder, std::string_view name) {
  if (folder.empty()) return std::string(name);
  if (name.empty()) return std::string(folder);
  return Cat({folder, folder.back() == '/' ? "" : "/", name});
}

}  // namespace dgxrun::agent::ckpt
