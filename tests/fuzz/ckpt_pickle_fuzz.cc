// The pickle reader, from any bytes: no crash, no value more than the cap allows, and every value that can be
// reached can be looked at (to a depth: values may contain themselves).
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "agent/ckpt/pickle.h"
#include "tests/fuzz/require.h"

using namespace dgxrun::agent::ckpt;  // NOLINT: one fuzzer

namespace {

void Look(Pickle::Value value, int depth, size_t& left) {
  if (left == 0 || depth == 0) return;
  --left;
  value.AsText();
  value.AsInt();
  value.AsNumber();
  value.ClassName();
  value.Get("storage_data");
  value.At(1);
  size_t count = 0;
  value.ForEach([&](Pickle::Value member) {
    ++count;
    Look(member, depth - 1, left);
    return left > 0;
  });
  value.ForEachPair([&](Pickle::Value key, Pickle::Value member) {
    ++count;
    Look(key, depth - 1, left);
    Look(member, depth - 1, left);
    return left > 0;
  });
  if (left > 0) dgxrun::Require(count == value.size(), "size() and the members disagree");
  for (Pickle::Value part : {value.args(), value.state(), value.items(), value.of()})
    Look(part, depth - 1, left);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  absl::StatusOr<std::unique_ptr<Pickle>> pickle = Pickle::Parse(bytes, {.values = 10000, .words = 40000});
  if (!pickle.ok()) return 0;
  dgxrun::Require((*pickle)->bytes_used() <= size, "read past its end");
  size_t left = 2000;
  Look((*pickle)->root(), 6, left);
  return 0;
}
