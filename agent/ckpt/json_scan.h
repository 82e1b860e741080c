// Reads JSON without building it: every scalar is shown once, with the keys that lead to it. No exceptions,
// no recursion, a cap on depth; memory for one key and one value at a time.
#ifndef DGXRUN_AGENT_CKPT_JSON_SCAN_H_
#define DGXRUN_AGENT_CKPT_JSON_SCAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace dgxrun::agent::ckpt {

// Deeper than any metadata of a framework; configurations that users nest have less than twenty.
inline constexpr size_t kMaxJsonDepth = 64;

struct JsonScalar {
  std::optional<int64_t> integer;  // also of floats that are whole numbers
  std::optional<std::string_view> text;
};

// `keys`: of the objects around it, outermost first, the last one its own; "" inside an array. Empty only for
// a text that is one scalar. Returns false to end the scan early (which is no error).
using JsonVisitor = absl::FunctionRef<bool(const std::vector<std::string>& keys, const JsonScalar& scalar)>;

struct JsonSummary {
  bool object = false;  // the outermost value is an object
  bool ended_early = false;
};

// kDataLoss: not JSON (what and where), or text after it; kResourceExhausted: too deep.
absl::Status ScanJson(std::string_view bytes, JsonVisitor visit, JsonSummary* summary = nullptr);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_JSON_SCAN_H_
