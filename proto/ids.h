// Ids as distinct types, so that a node is never taken for a job. All are compared and hashed by value;
// names match [A-Za-z0-9._-]{1,64}.
#ifndef DGXRUN_PROTO_IDS_H_
#define DGXRUN_PROTO_IDS_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace dgxrun {

template <class Tag>
class StringId {
 public:
  StringId() = default;
  explicit StringId(std::string value) : value_(std::move(value)) {}

  const std::string& str() const { return value_; }
  bool empty() const { return value_.empty(); }

  friend auto operator<=>(const StringId&, const StringId&) = default;
  template <class H>
  friend H AbslHashValue(H h, const StringId& id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, const StringId& id) { return os << id.value_; }

 private:
  std::string value_;
};

template <class Tag>
class NumberId {
 public:
  constexpr NumberId() = default;
  constexpr explicit NumberId(uint32_t value) : value_(value) {}

  constexpr uint32_t value() const { return value_; }
  constexpr NumberId Next() const { return NumberId(value_ + 1); }

  friend auto operator<=>(const NumberId&, const NumberId&) = default;
  template <class H>
  friend H AbslHashValue(H h, const NumberId& id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, const NumberId& id) { return os << id.value_; }

 private:
  uint32_t value_ = 0;
};

using JobId = StringId<struct JobTag>;    // "<first 6 hex digits of the cluster id>-<n>", never used twice
using NodeId = StringId<struct NodeTag>;  // a UUID, from the agent's state folder
using AttemptNo = NumberId<struct AttemptTag>;  // from 0; equals TORCHELASTIC_RESTART_COUNT
using Rank = NumberId<struct RankTag>;          // global rank

inline constexpr size_t kMaxNameLength = 64;  // fits a file name, a cgroup name and a socket path

inline bool IsValidName(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameLength || name == "." || name == "..") return false;
  for (char c : name) {
    const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                    c == '_' || c == '-';
    if (!ok) return false;
  }
  return true;
}

}  // namespace dgxrun

#endif  // DGXRUN_PROTO_IDS_H_
