#include "agent/ckpt/pickle.h"

#include <string.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "agent/ckpt/little_endian.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

// Opcodes of pickle, by the names of Python's pickletools.
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinFloat = 'G',
  kNoneOp = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinBytes8 = 0x8e,
  kByteArray8 = 0x96,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kListOp = 'l',
  kEmptyTuple = ')',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTupleOp = 't',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kDictOp = 'd',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kGlobalOp = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kBuild = 'b',
  kNewObj = 0x81,
  kNewObjEx = 0x92,
  kBinPersId = 'Q',
  kProto = 0x80,
  kFrame = 0x95,
};
constexpr int kNewestProtocol = 5;

absl::Status Malformed(std::string_view what) {
  return absl::DataLossError(Cat({"not a sound pickle: ", what}));
}

}  // namespace

// Runs the opcodes. One call each: Run().
class PickleMachine {
 public:
  PickleMachine(Pickle& pickle, const PickleCaps& caps) : pickle_(pickle), caps_(caps) {}

  absl::Status Run() {
    pickle_.nodes_.emplace_back();
    pickle_.words_.push_back(0);
    while (true) {
      if (at_ >= pickle_.bytes_.size()) return absl::OutOfRangeError("the pickle is cut off");
      const auto op = static_cast<unsigned char>(pickle_.bytes_[at_++]);
      if (op == kStop) break;
      if (absl::Status status = Step(op); !status.ok()) return status;
    }
    if (stack_.empty()) return Malformed("nothing is left at its end");
    pickle_.root_ = stack_.back();
    pickle_.used_ = at_;
    return absl::OkStatus();
  }

 private:
  using Node = Pickle::Node;

  absl::Status Step(unsigned char op) {
    switch (op) {
      case kBinInt:
      case kBinInt1:
      case kBinInt2:
      case kLong1:
      case kLong4:
      case kBinFloat:
      case kNoneOp:
      case kNewTrue:
      case kNewFalse:
        return Number(op);
      case kBinString:
      case kShortBinString:
      case kBinUnicode:
      case kShortBinUnicode:
      case kBinUnicode8:
        return Bytes(op, PickleKind::kText);
      case kBinBytes:
      case kShortBinBytes:
      case kBinBytes8:
      case kByteArray8:
        return Bytes(op, PickleKind::kBytes);
      case kBinGet:
      case kLongBinGet:
      case kBinPut:
      case kLongBinPut:
      case kMemoize:
        return Memo(op);
      case kGlobalOp:
      case kStackGlobal:
      case kReduce:
      case kBuild:
      case kNewObj:
      case kNewObjEx:
      case kBinPersId:
        return Object(op);
      case kProto:
      case kFrame:
      case kMark:
      case kPop:
      case kPopMark:
      case kDup:
        return Control(op);
      default:
        return Container(op);
    }
  }

  // What an opcode brings with it.
  absl::StatusOr<std::string_view> Take(uint64_t size) {
    if (size > pickle_.bytes_.size() - at_) return absl::OutOfRangeError("the pickle is cut off");
    const std::string_view taken = pickle_.bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }
  absl::StatusOr<uint64_t> TakeNumber(size_t width) {
    absl::StatusOr<std::string_view> raw = Take(width);
    if (!raw.ok()) return raw.status();
    return LoadLittleEndian(raw->data(), width);
  }
  absl::StatusOr<std::string_view> TakeLine() {
    const size_t end = pickle_.bytes_.find('\n', at_);
    if (end == std::string_view::npos) return absl::OutOfRangeError("the pickle is cut off");
    const std::string_view line = pickle_.bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  absl::Status Add(const Node& node) {
    if (pickle_.nodes_.size() >= caps_.values)
      return absl::ResourceExhaustedError("more values than are read");
    stack_.push_back(static_cast<uint32_t>(pickle_.nodes_.size()));
    pickle_.nodes_.push_back(node);
    return absl::OkStatus();
  }
  absl::Status AddText(PickleKind kind, std::string_view text) {
    Node node;
    node.kind = kind;
    // No text is longer than the file, whose size is capped far below 4 GiB.
    node.size = static_cast<uint32_t>(text.size());
    node.offset = static_cast<uint64_t>(text.data() - pickle_.bytes_.data());
    return Add(node);
  }
  absl::StatusOr<uint32_t> Pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return Malformed("it takes more than it has");
    const uint32_t id = stack_.back();
    stack_.pop_back();
    return id;
  }
  absl::StatusOr<uint32_t> PopMark() {
    if (marks_.empty()) return Malformed("it has no mark");
    const uint32_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }
  // The value that an opcode changes or remembers: it may lie just below a mark's place only if no mark is
  // open.
  absl::StatusOr<uint32_t> Top() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
      return Malformed("it uses what it does not have");
    return stack_.back();
  }

  absl::Status Number(unsigned char op);
  absl::Status Long(std::string_view raw);
  absl::Status Bytes(unsigned char op, PickleKind kind);
  absl::Status Memo(unsigned char op);
  absl::Status Object(unsigned char op);
  absl::Status Control(unsigned char op);
  absl::Status Container(unsigned char op);

  absl::Status MakeObject(uint32_t callable, uint32_t arguments);
  absl::Status Build();
  absl::Status StackGlobal(uint32_t module, uint32_t name);
  // Appends the stack from `begin` on to a container (or to an object's items) as one batch, and drops it.
  absl::Status Extend(uint32_t container, size_t begin, bool pairs);
  absl::StatusOr<uint32_t> ItemsOf(uint32_t object, bool pairs);
  absl::Status NewContainer(PickleKind kind, size_t begin);
  absl::Status MayGrow(size_t words) {
    if (words > caps_.words - std::min<size_t>(caps_.words, pickle_.words_.size())) {
      return absl::ResourceExhaustedError("larger containers than are read");
    }
    return absl::OkStatus();
  }

  Pickle& pickle_;
  const PickleCaps caps_;
  size_t at_ = 0;
  std::vector<uint32_t> stack_;
  std::vector<uint32_t> marks_;
  std::vector<uint32_t> memo_;
};

absl::Status PickleMachine::Number(unsigned char op) {
  Node node;
  node.kind = PickleKind::kInt;
  switch (op) {
    case kNoneOp:
      node.kind = PickleKind::kNone;
      return Add(node);
    case kNewTrue:
    case kNewFalse:
      node.kind = PickleKind::kBool;
      node.integer = op == kNewTrue ? 1 : 0;
      return Add(node);
    case kBinFloat: {
      absl::StatusOr<std::string_view> raw = Take(8);
      if (!raw.ok()) return raw.status();
      uint64_t bits = 0;
      for (char c : *raw) bits = bits << 8 | static_cast<unsigned char>(c);  // the only big-endian number
      node.kind = PickleKind::kFloat;
      memcpy(&node.real, &bits, sizeof(bits));
      return Add(node);
    }
    case kLong1:
    case kLong4: {
      absl::StatusOr<uint64_t> size = TakeNumber(op == kLong1 ? 1 : 4);
      if (!size.ok()) return size.status();
      absl::StatusOr<std::string_view> raw = Take(*size);
      if (!raw.ok()) return raw.status();
      return Long(*raw);
    }
    default:
      break;
  }
  const size_t width = op == kBinInt ? 4 : op == kBinInt2 ? 2 : 1;
  absl::StatusOr<uint64_t> number = TakeNumber(width);
  if (!number.ok()) return number.status();
  node.integer = op == kBinInt ? static_cast<int32_t>(*number) : static_cast<int64_t>(*number);
  return Add(node);
}

absl::Status PickleMachine::Long(std::string_view raw) {
  Node node;
  if (raw.size() > 8) {
    node.kind = PickleKind::kBigInt;
    return Add(node);
  }
  node.kind = PickleKind::kInt;
  uint64_t bits = LoadLittleEndian(raw.data(), raw.size());
  const bool negative = !raw.empty() && (raw.back() & 0x80) != 0;
  if (negative && raw.size() < 8) bits |= ~uint64_t{0} << (8 * raw.size());
  node.integer = static_cast<int64_t>(bits);
  return Add(node);
}

absl::Status PickleMachine::Bytes(unsigned char op, PickleKind kind) {
  size_t width = 4;
  if (op == kShortBinString || op == kShortBinUnicode || op == kShortBinBytes) width = 1;
  if (op == kBinUnicode8 || op == kBinBytes8 || op == kByteArray8) width = 8;
  absl::StatusOr<uint64_t> size = TakeNumber(width);
  if (!size.ok()) return size.status();
  absl::StatusOr<std::string_view> raw = Take(*size);
  if (!raw.ok()) return raw.status();
  if (kind == PickleKind::kText && raw->find('\0') != std::string_view::npos) pickle_.has_nul_text_ = true;
  return AddText(kind, *raw);
}

absl::Status PickleMachine::Memo(unsigned char op) {
  if (op == kMemoize) {
    absl::StatusOr<uint32_t> top = Top();
    if (!top.ok()) return top.status();
    if (memo_.size() >= caps_.values) return absl::ResourceExhaustedError("a larger memo than is kept");
    memo_.push_back(*top);
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> index = TakeNumber(op == kBinGet || op == kBinPut ? 1 : 4);
  if (!index.ok()) return index.status();
  if (op == kBinGet || op == kLongBinGet) {
    if (*index >= memo_.size() || memo_[*index] == 0)
      return Malformed("it recalls what was never remembered");
    stack_.push_back(memo_[*index]);
    return absl::OkStatus();
  }
  absl::StatusOr<uint32_t> top = Top();
  if (!top.ok()) return top.status();
  if (*index >= caps_.values) return absl::ResourceExhaustedError("a larger memo than is kept");
  if (*index >= memo_.size()) memo_.resize(*index + 1, 0);
  memo_[*index] = *top;
  return absl::OkStatus();
}

absl::Status PickleMachine::StackGlobal(uint32_t module, uint32_t name) {
  if (pickle_.nodes_[module].kind != PickleKind::kText || pickle_.nodes_[name].kind != PickleKind::kText) {
    return Malformed("a global's name is not text");
  }
  if (absl::Status may = MayGrow(2); !may.ok()) return may;
  Node node;
  node.kind = PickleKind::kGlobal;
  node.batch.first = static_cast<uint32_t>(pickle_.words_.size());
  node.batch.last = 0;
  pickle_.words_.insert(pickle_.words_.end(), {module, name});
  return Add(node);
}

absl::Status PickleMachine::MakeObject(uint32_t callable, uint32_t arguments) {
  if (absl::Status may = MayGrow(Pickle::kObjectWords); !may.ok()) return may;
  Node node;
  node.kind = PickleKind::kObject;
  node.batch.first = static_cast<uint32_t>(pickle_.words_.size());
  node.batch.last = 0;
  pickle_.words_.insert(pickle_.words_.end(), {callable, arguments, 0, 0});
  return Add(node);
}

absl::Status PickleMachine::Build() {
  absl::StatusOr<uint32_t> state = Pop();
  if (!state.ok()) return state.status();
  absl::StatusOr<uint32_t> object = Top();
  if (!object.ok()) return object.status();
  const Node& node = pickle_.nodes_[*object];
  // Python would call __setstate__ of whatever it is. We keep the state of objects and nothing else.
  if (node.kind == PickleKind::kObject) pickle_.words_[node.batch.first + Pickle::kState] = *state;
  return absl::OkStatus();
}

absl::Status PickleMachine::Object(unsigned char op) {
  if (op == kBuild) return Build();
  if (op == kGlobalOp) {
    for (int part = 0; part < 2; ++part) {
      absl::StatusOr<std::string_view> line = TakeLine();
      if (!line.ok()) return line.status();
      if (absl::Status added = AddText(PickleKind::kText, *line); !added.ok()) return added;
    }
  }
  absl::StatusOr<uint32_t> last = Pop();
  if (!last.ok()) return last.status();
  if (op == kBinPersId) {
    Node node;
    node.kind = PickleKind::kPersistent;
    node.batch.first = *last;
    node.batch.last = 0;
    return Add(node);
  }
  if (op == kNewObjEx) {  // keyword arguments: not kept
    last = Pop();
    if (!last.ok()) return last.status();
  }
  absl::StatusOr<uint32_t> first = Pop();
  if (!first.ok()) return first.status();
  return op == kGlobalOp || op == kStackGlobal ? StackGlobal(*first, *last) : MakeObject(*first, *last);
}

absl::Status PickleMachine::Control(unsigned char op) {
  switch (op) {
    case kMark:
      marks_.push_back(static_cast<uint32_t>(stack_.size()));
      return absl::OkStatus();
    case kPop:
      return Pop().status();
    case kPopMark: {
      absl::StatusOr<uint32_t> mark = PopMark();
      if (!mark.ok()) return mark.status();
      stack_.resize(*mark);
      return absl::OkStatus();
    }
    case kDup: {
      absl::StatusOr<uint32_t> top = Top();
      if (!top.ok()) return top.status();
      stack_.push_back(*top);
      return absl::OkStatus();
    }
    case kFrame:
      return Take(8).status();
    default:
      break;
  }
  absl::StatusOr<uint64_t> protocol = TakeNumber(1);
  if (!protocol.ok()) return protocol.status();
  if (*protocol > kNewestProtocol) {
    return absl::UnimplementedError(absl::StrCat("pickle protocol ", *protocol, " is not known"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> PickleMachine::ItemsOf(uint32_t object, bool pairs) {
  const uint32_t word = pickle_.nodes_[object].batch.first + Pickle::kItems;
  if (pickle_.words_[word] != 0) return pickle_.words_[word];
  Node items;
  items.kind = pairs ? PickleKind::kDict : PickleKind::kList;
  if (absl::Status added = Add(items); !added.ok()) return added;
  const uint32_t id = stack_.back();
  stack_.pop_back();
  pickle_.words_[word] = id;
  return id;
}

absl::Status PickleMachine::Extend(uint32_t container, size_t begin, bool pairs) {
  const size_t count = stack_.size() - begin;
  if (pairs && count % 2 != 0) return Malformed("a key without a value");
  const std::vector<uint32_t> members(stack_.begin() + static_cast<ptrdiff_t>(begin), stack_.end());
  stack_.resize(begin);
  if (pickle_.nodes_[container].kind == PickleKind::kObject) {
    absl::StatusOr<uint32_t> items = ItemsOf(container, pairs);
    if (!items.ok()) return items.status();
    container = *items;
  }
  Node& node = pickle_.nodes_[container];
  const bool dict = node.kind == PickleKind::kDict;
  if (dict != pairs || (!dict && node.kind != PickleKind::kList && node.kind != PickleKind::kSet &&
                        node.kind != PickleKind::kTuple)) {
    return Malformed("members are added to what cannot have them");
  }
  if (count == 0) return absl::OkStatus();
  if (absl::Status may = MayGrow(count + Pickle::kBatchHead); !may.ok()) return may;
  const auto batch = static_cast<uint32_t>(pickle_.words_.size());
  pickle_.words_.push_back(static_cast<uint32_t>(count));
  pickle_.words_.push_back(0);
  pickle_.words_.insert(pickle_.words_.end(), members.begin(), members.end());
  if (node.batch.last != 0) pickle_.words_[node.batch.last + 1] = batch;
  if (node.batch.first == 0) node.batch.first = batch;
  node.batch.last = batch;
  node.size += static_cast<uint32_t>(count);
  return absl::OkStatus();
}

absl::Status PickleMachine::NewContainer(PickleKind kind, size_t begin) {
  Node node;
  node.kind = kind;
  if (absl::Status added = Add(node); !added.ok()) return added;
  const uint32_t id = stack_.back();
  stack_.pop_back();
  if (absl::Status extended = Extend(id, begin, kind == PickleKind::kDict); !extended.ok()) return extended;
  stack_.push_back(id);
  return absl::OkStatus();
}

absl::Status PickleMachine::Container(unsigned char op) {
  switch (op) {
    case kEmptyList:
      return NewContainer(PickleKind::kList, stack_.size());
    case kEmptyTuple:
      return NewContainer(PickleKind::kTuple, stack_.size());
    case kEmptyDict:
      return NewContainer(PickleKind::kDict, stack_.size());
    case kEmptySet:
      return NewContainer(PickleKind::kSet, stack_.size());
    default:
      break;
  }
  size_t begin = stack_.size();
  const size_t base = marks_.empty() ? 0 : marks_.back();
  if (op == kTuple1 || op == kTuple2 || op == kTuple3 || op == kAppend || op == kSetItem) {
    const size_t wanted = op == kTuple1 || op == kAppend ? 1 : op == kTuple3 ? 3 : 2;
    if (begin - base < wanted) return Malformed("it takes more than it has");
    begin -= wanted;
  } else if (op == kTupleOp || op == kListOp || op == kDictOp || op == kFrozenSet || op == kAppends ||
             op == kSetItems || op == kAddItems) {
    absl::StatusOr<uint32_t> mark = PopMark();
    if (!mark.ok()) return mark.status();
    begin = *mark;
  } else {
    return absl::UnimplementedError(absl::StrCat("pickle opcode ", int{op}, " is not read"));
  }
  switch (op) {
    case kTuple1:
    case kTuple2:
    case kTuple3:
    case kTupleOp:
      return NewContainer(PickleKind::kTuple, begin);
    case kListOp:
      return NewContainer(PickleKind::kList, begin);
    case kDictOp:
      return NewContainer(PickleKind::kDict, begin);
    case kFrozenSet:
      return NewContainer(PickleKind::kSet, begin);
    default:
      break;
  }
  if (begin <= (marks_.empty() ? 0 : marks_.back())) return Malformed("members without a container");
  return Extend(stack_[begin - 1], begin, op == kSetItem || op == kSetItems);
}

absl::StatusOr<std::unique_ptr<Pickle>> Pickle::Parse(std::string_view bytes, const PickleCaps& caps) {
  if (bytes.size() > UINT32_MAX) return absl::ResourceExhaustedError("a larger pickle than is read");
  std::unique_ptr<Pickle> pickle(new Pickle(bytes));
  if (absl::Status status = PickleMachine(*pickle, caps).Run(); !status.ok()) return status;
  return pickle;
}

}  // namespace dgxrun::agent::ckpt
