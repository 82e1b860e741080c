// A reader of Python pickles that executes nothing, imports nothing and calls nothing.
//
// The opcodes of protocols 2 to 5 are run on a stack of plain values: numbers, text, bytes, lists, tuples,
// dicts, sets. A global (a class or function) becomes a name; what pickle would build by calling it becomes
// an object: that name, its arguments, its state and its items, as they lie in the file. A persistent id
// (torch's reference to a storage) stays what it is. Values refer to the bytes that were parsed: keep those
// alive.
//
// Bounded: caps on values, on words of containers and on the memo; no recursion anywhere, though values may
// be nested or contain themselves: whoever descends brings his own limit.
//
// Errors: kOutOfRange (ends before its STOP), kDataLoss (not a pickle, or its stack does not work out),
// kUnimplemented (an opcode that only protocols 0 and 1, extensions or out-of-band buffers use),
// kResourceExhausted (a cap).
#ifndef DGXRUN_AGENT_CKPT_PICKLE_H_
#define DGXRUN_AGENT_CKPT_PICKLE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace dgxrun::agent::ckpt {

struct PickleCaps {
  // 16 bytes each, so 160 MB. One shard of one tensor takes about ten in a .metadata of DCP: a million of
  // them.
  uint32_t values = 10'000'000;
  // 4 bytes each, 160 MB: members of containers, and two more per container and batch.
  uint32_t words = 40'000'000;
};

enum class PickleKind : uint8_t {
  kAbsent,  // nothing: what a failed look-up gives
  kNone,
  kBool,
  kInt,
  kBigInt,  // does not fit into 64 bits
  kFloat,
  kText,
  kBytes,
  kList,
  kTuple,
  kDict,
  kSet,
  kGlobal,      // "module name"
  kObject,      // a call or an instance
  kPersistent,  // of(): the id
};

class Pickle {
 public:
  // A handle; valid as long as the Pickle and its bytes.
  class Value {
   public:
    Value() = default;
    PickleKind kind() const;
    bool absent() const { return kind() == PickleKind::kAbsent; }
    std::optional<int64_t> AsInt() const;    // of kInt and kBool
    std::optional<double> AsNumber() const;  // of kInt, kBool and kFloat
    std::optional<std::string_view> AsText() const;
    // Members of kList, kTuple, kSet; pairs of kDict. 0 for everything else.
    uint32_t size() const;
    // Stops when `visit` returns false.
    void ForEach(absl::FunctionRef<bool(Value)> visit) const;             // kList, kTuple, kSet
    void ForEachPair(absl::FunctionRef<bool(Value, Value)> visit) const;  // kDict
    Value At(uint32_t index) const;  // of kList, kTuple; kAbsent past the end
    // By text key: of a kDict its member; of a kObject the attribute in its state, else the member of its
    // items. The last one wins, as in Python.
    Value Get(std::string_view key) const;

    // kGlobal: itself. kObject: what would be called. "module.name"; empty for everything else.
    std::string ClassName() const;
    Value args() const;   // kObject
    Value state() const;  // kObject: what BUILD gave; kAbsent: nothing
    Value items() const;  // kObject: what SETITEMS or APPENDS gave, a kDict or kList
    Value of() const;     // kPersistent

   private:
    friend class Pickle;
    Value(const Pickle* pickle, uint32_t id) : pickle_(pickle), id_(id) {}
    const Pickle* pickle_ = nullptr;
    uint32_t id_ = 0;
  };

  static absl::StatusOr<std::unique_ptr<Pickle>> Parse(std::string_view bytes, const PickleCaps& caps = {});
  Value root() const { return Value(this, root_); }
  // Bytes up to and with STOP.
  size_t bytes_used() const { return used_; }
  // A text holds a NUL: right in pickled bytes of old protocols, wrong in a pickle that holds names only.
  bool has_nul_text() const { return has_nul_text_; }

 private:
  friend class PickleMachine;
  Value ObjectPart(uint32_t id, uint32_t which) const;

  // 16 bytes. What the fields mean depends on the kind:
  //   numbers: themselves; text and bytes: `offset` into bytes_ and `size`; containers: first and last batch
  //   and `size` in members (a dict counts keys and values); objects and globals: first word; persistent ids:
  //   first is the value.
  struct Node {
    PickleKind kind = PickleKind::kAbsent;
    uint32_t size = 0;
    union {
      int64_t integer;
      double real;
      uint64_t offset;
      struct {
        uint32_t first;
        uint32_t last;
      } batch;
    };
    Node() : integer(0) {}
  };
  // Of `words_` at a batch: number of members, next batch (0: none), members.
  static constexpr uint32_t kBatchHead = 2;
  // Of `words_` at an object: callable, arguments, state, items (0: none); at a global: module, name.
  static constexpr uint32_t kObjectWords = 4;
  enum ObjectWord : uint32_t { kCallable, kArguments, kState, kItems };

  explicit Pickle(std::string_view bytes) : bytes_(bytes) {}
  std::string_view TextOf(const Node& node) const { return bytes_.substr(node.offset, node.size); }
  void ForEachMember(const Node& node, absl::FunctionRef<bool(uint32_t)> visit) const;

  std::string_view bytes_;
  std::vector<Node> nodes_;      // 0: kAbsent
  std::vector<uint32_t> words_;  // 0 is never a batch
  uint32_t root_ = 0;
  size_t used_ = 0;
  bool has_nul_text_ = false;
};

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_PICKLE_H_
