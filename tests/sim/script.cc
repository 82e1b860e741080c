#include "tests/sim/script.h"

#include <csignal>

namespace dgxrun::sim {

const AttemptScript& Script::Of(const std::string& job, uint32_t attempt, uint32_t ranks) {
  auto [it, fresh] = attempts_.try_emplace({job, attempt});
  AttemptScript& script = it->second;
  if (!fresh) return script;
  // One job in ten outlasts the run.
  script.duration = world_->Chance(10) ? 100000 * kSecond : world_->Between(2 * kSecond, 30 * kSecond);
  if (!failures || !world_->Chance(50)) return script;
  if (world_->Chance(10)) {
    script.spawn_fails = static_cast<int>(world_->Between(0, ranks - 1));
    return script;
  }
  script.culprit = static_cast<int>(world_->Between(0, ranks - 1));
  script.fails_after = world_->Between(0, 15 * kSecond);
  if (script.fails_after > script.duration) script.fails_after = script.duration / 2;
  switch (world_->Between(0, 3)) {
    case 0:
      script.failure = {85, 0, "ValueError: bad batch"};
      break;
    case 1:
      script.failure = {0, SIGSEGV, ""};
      break;
    case 2:
      script.failure = {0, SIGKILL, ""};
      break;
    case 3:
      script.failure = {1, 0, "RuntimeError: loss is nan"};
      break;
  }
  return script;
}

void Script::FailsSoon(const std::string& job, uint32_t attempt, uint32_t ranks, const std::string& tail) {
  Of(job, attempt, ranks);
  if (!fail_soon_.insert({job, attempt}).second) return;  // each node of the attempt says so
  AttemptScript& script = attempts_[{job, attempt}];
  script.spawn_fails = -1;
  script.culprit = 0;
  script.fails_after = world_->Between(200 * kMs, 2 * kSecond);
  script.failure = {1, 0, tail};
}

bool Script::Victim(Ending* ending) {
  switch (world_->Between(0, 3)) {
    case 0:
      *ending = {1, 0, "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:4242"};
      return true;
    case 1:
      *ending = {0, SIGABRT, "[rank3] Watchdog caught collective operation timeout: WorkNCCL"};
      return true;
    case 2:
      *ending = {1, 0,
                 "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a "
                 "network error"};
      return true;
    default:
      return false;
  }
}

bool Script::OnTerm(Ending* ending, int64_t* delay) {
  *delay = world_->Between(kMs, 1500 * kMs);
  switch (world_->Between(0, 3)) {
    case 0:
      *ending = {0, 0, ""};  // saves and leaves as if all were well
      return true;
    case 1:
      return false;
    default:
      *ending = {0, SIGTERM, ""};
      return true;
  }
}

}  // namespace dgxrun::sim
