// JSON, trackers and names, from any bytes. What a tracker names stays in its folder.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/ckpt/json_scan.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/names.h"
#include "agent/ckpt/source.h"
#include "agent/ckpt/tracker.h"
#include "tests/fuzz/require.h"

using namespace dgxrun::agent::ckpt;  // NOLINT: one fuzzer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  size_t scalars = 0;
  ScanJson(bytes, [&](const std::vector<std::string>& keys, const JsonScalar&) {
    dgxrun::Require(keys.size() <= kMaxJsonDepth, "deeper than the cap");
    return ++scalars < 10000;
  }).IgnoreError();
  dgxrun::Require(scalars <= size + 1, "more scalars than bytes");
  for (TrackerKind kind : {TrackerKind::kMegatron, TrackerKind::kDeepSpeed, TrackerKind::kDlrover}) {
    const Tracker tracker = ParseTracker(kind, bytes);
    dgxrun::Require((tracker.state == TrackerState::kNames) == !tracker.target.empty(),
                    "a state without its target");
    if (!tracker.target.empty())
      dgxrun::Require(StaysBeneath(tracker.target), "a tracker leads out of the folder");
  }
  const std::string_view name = bytes.substr(0, 300);
  MayBeCheckpoint(name);
  StepOfName(name);
  if (const std::optional<PartName> part = ParsePartName(name); part.has_value()) {
    const std::optional<PartName> again = ParsePartName(PartNameOf(name, part->number));
    dgxrun::Require(again.has_value() && again->number == part->number, "a part's name is not its own");
  }
  return 0;
}
