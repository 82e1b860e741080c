// What time it is, as a seam: everything that waits for a deadline takes a Clock, so that a test moves it.
//
// BoottimeNs counts through suspend and is compared with leases; UnixNs is for people and is never
// compared between nodes.
#ifndef DGXRUN_LAUNCHER_BASE_CLOCK_H_
#define DGXRUN_LAUNCHER_BASE_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace dgxrun {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t BoottimeNs() const = 0;
  virtual int64_t UnixNs() const = 0;
};

class RealClock final : public Clock {
 public:
  int64_t BoottimeNs() const override { return Get(CLOCK_BOOTTIME); }
  int64_t UnixNs() const override { return Get(CLOCK_REALTIME); }

 private:
  static int64_t Get(clockid_t id) {
    timespec ts;
    clock_gettime(id, &ts);
    return ts.tv_sec * int64_t{1000000000} + ts.tv_nsec;
  }
};

class FakeClock final : public Clock {
 public:
  int64_t BoottimeNs() const override { return boottime_ns_; }
  int64_t UnixNs() const override { return unix_ns_; }
  void Advance(int64_t ns) {
    boottime_ns_ += ns;
    unix_ns_ += ns;
  }
  void StepWallClock(int64_t ns) { unix_ns_ += ns; }  // what an NTP step does

 private:
  int64_t boottime_ns_ = 1;
  int64_t unix_ns_ = 1'700'000'000'000'000'000;
};

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BASE_CLOCK_H_
