// Virtual time and chance of one simulated run: one thread, one seed, one queue of events. Nothing in here
// or above it reads a clock or draws from anywhere else, so a seed is a run.
#ifndef DGXRUN_TESTS_SIM_WORLD_H_
#define DGXRUN_TESTS_SIM_WORLD_H_

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace dgxrun::sim {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kSecond = 1000 * kMs;

class World {
 public:
  explicit World(uint64_t seed) : random_(seed * 0x9E3779B97F4A7C15ull + 1) {}

  int64_t now() const { return now_; }
  absl::Time wall() const { return absl::FromUnixSeconds(1700000000) + absl::Nanoseconds(now_); }

  // splitmix64: the same on every machine and library.
  uint64_t Draw() {
    uint64_t z = (random_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Draw() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Between(1, 100) <= percent; }

  void At(int64_t when, std::function<void()> run) {
    events_.emplace(std::make_pair(when < now_ ? now_ : when, ++last_), std::move(run));
  }
  void In(int64_t delay, std::function<void()> run) { At(now_ + delay, std::move(run)); }

  // Runs events up to the time; `after` is called after each one.
  void RunUntil(int64_t end, const std::function<bool()>& after) {
    while (!events_.empty() && events_.begin()->first.first <= end) {
      auto event = events_.extract(events_.begin());
      now_ = event.key().first;
      event.mapped()();
      if (!after()) return;
    }
    now_ = end;
  }

  // What happened, folded into a number (FNV-1a): two runs of a seed must agree. With `verbose` it is
  // printed too.
  void Trace(const std::string& what) {
    Fold(what);
    if (verbose) std::printf("%10.3f %s\n", static_cast<double>(now_) / kSecond, what.c_str());
  }
  // The same for a message, which is turned into text only for a reader.
  template <class Message>
  void Trace(const char* what, const Message& message) {
    Fold(message.SerializeAsString());
    if (verbose)
      std::printf("%10.3f %s %s\n", static_cast<double>(now_) / kSecond, what,
                  message.ShortDebugString().c_str());
  }
  uint64_t hash() const { return hash_; }

  bool verbose = false;

 private:
  void Fold(const std::string& bytes) {
    hash_ = (hash_ ^ static_cast<uint64_t>(now_)) * 0x100000001B3ull;
    for (const char c : bytes) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  }

  int64_t now_ = kSecond;
  uint64_t random_;
  uint64_t last_ = 0;
  uint64_t hash_ = 0xCBF29CE484222325ull;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> events_;
};

}  // namespace dgxrun::sim

#endif  // DGXRUN_TESTS_SIM_WORLD_H_
