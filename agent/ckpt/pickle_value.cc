// The values of a Pickle; pickle.cc builds them.
#include "agent/ckpt/pickle.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {

void Pickle::ForEachMember(const Node& node, absl::FunctionRef<bool(uint32_t)> visit) const {
  for (uint32_t batch = node.batch.first; batch != 0; batch = words_[batch + 1]) {
    const uint32_t begin = batch + kBatchHead;
    for (uint32_t i = begin; i < begin + words_[batch]; ++i) {
      if (!visit(words_[i])) return;
    }
  }
}

PickleKind Pickle::Value::kind() const {
  return pickle_ == nullptr ? PickleKind::kAbsent : pickle_->nodes_[id_].kind;
}

std::optional<int64_t> Pickle::Value::AsInt() const {
  if (kind() != PickleKind::kInt && kind() != PickleKind::kBool) return std::nullopt;
  return pickle_->nodes_[id_].integer;
}

std::optional<double> Pickle::Value::AsNumber() const {
  if (kind() == PickleKind::kFloat) return pickle_->nodes_[id_].real;
  const std::optional<int64_t> integer = AsInt();
  if (!integer.has_value()) return std::nullopt;
  return static_cast<double>(*integer);
}

std::optional<std::string_view> Pickle::Value::AsText() const {
  if (kind() != PickleKind::kText) return std::nullopt;
  return pickle_->TextOf(pickle_->nodes_[id_]);
}

uint32_t Pickle::Value::size() const {
  switch (kind()) {
    case PickleKind::kList:
    case PickleKind::kTuple:
    case PickleKind::kSet:
      return pickle_->nodes_[id_].size;
    case PickleKind::kDict:
      return pickle_->nodes_[id_].size / 2;
    case PickleKind::kAbsent:
    case PickleKind::kNone:
    case PickleKind::kBool:
    case PickleKind::kInt:
    case PickleKind::kBigInt:
    case PickleKind::kFloat:
    case PickleKind::kText:
    case PickleKind::kBytes:
    case PickleKind::kGlobal:
    case PickleKind::kObject:
    case PickleKind::kPersistent:
      return 0;
  }
  return 0;
}

void Pickle::Value::ForEach(absl::FunctionRef<bool(Value)> visit) const {
  if (kind() != PickleKind::kList && kind() != PickleKind::kTuple && kind() != PickleKind::kSet) return;
  pickle_->ForEachMember(pickle_->nodes_[id_], [&](uint32_t id) { return visit(Value(pickle_, id)); });
}

void Pickle::Value::ForEachPair(absl::FunctionRef<bool(Value, Value)> visit) const {
  if (kind() != PickleKind::kDict) return;
  uint32_t key = 0;
  bool has_key = false;
  pickle_->ForEachMember(pickle_->nodes_[id_], [&](uint32_t id) {
    has_key = !has_key;
    if (has_key) {
      key = id;
      return true;
    }
    return visit(Value(pickle_, key), Value(pickle_, id));
  });
}

Pickle::Value Pickle::Value::At(uint32_t index) const {
  Value found;
  uint32_t at = 0;
  ForEach([&](Value value) {
    if (at++ != index) return true;
    found = value;
    return false;
  });
  return found;
}

Pickle::Value Pickle::Value::Get(std::string_view key) const {
  if (kind() == PickleKind::kObject) {
    // An object's state is a dict, or a pair of one and the dict of its slots.
    Value in = state();
    if (in.kind() == PickleKind::kTuple) in = in.At(0).kind() == PickleKind::kDict ? in.At(0) : in.At(1);
    Value found = in.kind() == PickleKind::kDict ? in.Get(key) : Value();
    if (found.absent() && items().kind() == PickleKind::kDict) found = items().Get(key);
    return found;
  }
  Value found;
  ForEachPair([&](Value k, Value v) {
    if (k.AsText() == key) found = v;
    return true;
  });
  return found;
}

Pickle::Value Pickle::ObjectPart(uint32_t id, uint32_t which) const {
  const uint32_t part = words_[nodes_[id].batch.first + which];
  return part == 0 ? Value() : Value(this, part);
}

std::string Pickle::Value::ClassName() const {
  Value global = *this;
  if (kind() == PickleKind::kObject) global = pickle_->ObjectPart(id_, kCallable);
  if (global.kind() != PickleKind::kGlobal) return "";
  return Cat({pickle_->ObjectPart(global.id_, 0).AsText().value_or(""), ".",
              pickle_->ObjectPart(global.id_, 1).AsText().value_or("")});
}

Pickle::Value Pickle::Value::args() const {
  return kind() == PickleKind::kObject ? pickle_->ObjectPart(id_, kArguments) : Value();
}
Pickle::Value Pickle::Value::state() const {
  return kind() == PickleKind::kObject ? pickle_->ObjectPart(id_, kState) : Value();
}
Pickle::Value Pickle::Value::items() const {
  return kind() == PickleKind::kObject ? pickle_->ObjectPart(id_, kItems) : Value();
}
Pickle::Value Pickle::Value::of() const {
  return kind() == PickleKind::kPersistent ? Value(pickle_, pickle_->nodes_[id_].batch.first) : Value();
}

}  // namespace dgxrun::agent::ckpt
