// The faults of the storm: small, and free to fall together.
#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace dgxrun::sim {

void Simulation::Storm() {
  if (!storm_) return;
  if (mood_ == Mood::kPartitions) {
    OnePartition();
    world_.In(world_.Between(5 * kSecond, 30 * kSecond), [this] { Storm(); });
    return;
  }
  OneFault();
  world_.In(world_.Between(500 * kMs, 8 * kSecond), [this] { Storm(); });
}

// Few faults, and long ones: leases run out, committees are asked, fences are waited for.
void Simulation::OnePartition() {
  auto it = hosts_.begin();
  std::advance(it, world_.Between(0, static_cast<int64_t>(hosts_.size()) - 1));
  switch (world_.Between(0, 5)) {
    case 0:
      return CrashController();
    case 1:
      return Cut(&it->second);
    case 2:
      return CutController();
    case 3:
      return LosePower(&it->second);
    default:
      return CutRack();
  }
}

void Simulation::OneFault() {
  auto it = hosts_.begin();
  std::advance(it, world_.Between(0, static_cast<int64_t>(hosts_.size()) - 1));
  Host* host = &it->second;
  switch (world_.Between(0, 8)) {
    case 0:
      return CrashController();
    case 1:
      return CrashAgent(host);
    case 2:
      if (world_.Chance(50)) LosePower(host);
      return;
    case 3:
      return Cut(host);
    case 4: {  // a user's word
      const auto jobs = controller_.Jobs();
      if (jobs.empty() || !controller_.up() || !world_.Chance(50)) return;
      core::StopJob stop;
      stop.request = ++last_request_;
      stop.caller = core::Caller{"ada", 1000, 1000, false};
      stop.job = JobId(jobs[world_.Between(0, static_cast<int64_t>(jobs.size()) - 1)].job_id());
      stop.reason = world_.Chance(50) ? "Ctrl-C" : "dgxrun stop";
      stop.has_grace = world_.Chance(30);
      stop.grace = absl::Milliseconds(500);
      return controller_.Feed(stop);
    }
    case 6:
      return CutRack();
    case 7:
      return CutController();
    case 8: {  // somebody who looked: it is off, and stays so for a while
      if (host->node->powered() || !controller_.up()) return;
      core::FenceNode fence;
      fence.request = ++last_request_;
      fence.caller = core::Caller{"root", 0, 0, true};
      fence.node = host->node->name();
      return controller_.Feed(fence);
    }
    case 5: {  // a broken connection that heals by itself
      if (host->stream == nullptr) return;
      const StreamPtr stream = host->stream;
      BreakAgentEnd(stream);
      world_.In(world_.Between(0, 3 * kSecond), [this, stream] { BreakControllerEnd(stream); });
      return;
    }
  }
}

void Simulation::CrashController() {
  if (!controller_.up()) return;
  SimNode* beside = options_.peers ? hosts_.at("n1").node.get() : nullptr;  // of the same process
  // Not in touch for as long as it takes to come back and to be found again: any node may fence itself.
  Fault("", 0, -1, "");
  if (world_.Chance(30)) {
    controller_.Crash();
  } else {
    controller_.CrashIn(static_cast<int>(world_.Between(1, 12)));
  }
  const int64_t down =
      world_.Chance(80) ? world_.Between(100 * kMs, 3 * kSecond) : world_.Between(3 * kSecond, 60 * kSecond);
  const bool lost = options_.peers && world_.Chance(60);
  world_.In(down, [this, beside, lost] {
    controller_.Crash();  // one that waits for its step dies now
    if (beside != nullptr) beside->CrashAgent();
    if (lost) controller_.LoseLog();
    controller_.Start();
    if (beside != nullptr) beside->StartAgent();
  });
}

void Simulation::CrashAgent(Host* host) {
  if (!host->node->agent_up()) return;
  if (IsEndpoint(*host)) return CrashController();
  Fault("", 0, -1, host->node->name());
  if (world_.Chance(40)) {
    host->node->CrashAgent();
  } else {
    host->node->CrashAgentIn(static_cast<int>(world_.Between(1, 8)));
  }
  const int64_t down =
      world_.Chance(80) ? world_.Between(100 * kMs, 2 * kSecond) : world_.Between(2 * kSecond, 20 * kSecond);
  world_.In(down, [host] {
    host->node->CrashAgent();
    host->node->StartAgent();
  });
}

void Simulation::LosePower(Host* host) {
  if (!host->node->powered() || IsEndpoint(*host)) return;
  Fault("", 0, -1, host->node->name());
  host->node->PowerOff();
  if (world_.Chance(25)) {
    host->dead_for_good = true;
    return;
  }
  world_.In(world_.Between(kSecond, 30 * kSecond), [host] { host->node->PowerOn(); });
}

// From the controller, one way or both; from the other agents too, or not.
void Simulation::Cut(Host* host) {
  if (IsEndpoint(*host)) return;  // in one process
  const int64_t kind = world_.Between(0, 2);
  const int64_t time = world_.Between(200 * kMs, 40 * kSecond);
  if (world_.Chance(50)) host->side = ++last_side_;
  CutFromController(host, kind != 0, kind != 1, time);
}

// Some nodes together, members of the committee among them.
void Simulation::CutRack() {
  const int side = ++last_side_;
  const int64_t time = world_.Between(5 * kSecond, 60 * kSecond);
  const int share = static_cast<int>(world_.Between(20, 60));
  const bool from_others = world_.Chance(70);
  for (auto& [name, host] : hosts_) {
    if (IsEndpoint(host) || !world_.Chance(share)) continue;
    if (from_others) host.side = side;
    CutFromController(&host, true, true, time + world_.Between(0, 2 * kSecond));
  }
}

// The controller alone: every node is healthy, and none hears of it.
void Simulation::CutController() {
  const int64_t time = world_.Between(5 * kSecond, 60 * kSecond);
  const int64_t kind = world_.Between(0, 2);
  for (auto& [name, host] : hosts_) {
    if (!IsEndpoint(host)) CutFromController(&host, kind != 0, kind != 1, time);
  }
}

void Simulation::CutFromController(Host* host, bool up, bool down, int64_t for_ns) {
  Fault("", 0, -1, host->node->name());
  host->cut_up = up;
  host->cut_down = down;
  const uint64_t number = ++host->cut;
  world_.Trace(
      absl::StrCat("cut ", host->node->name(), up ? " up" : "", down ? " down" : "", " side ", host->side));
  // Each end finds out for itself, when its keepalive runs out.
  if (const StreamPtr stream = host->stream) {
    world_.In(world_.Between(4 * kSecond, 7 * kSecond), [this, stream, host, number] {
      if (host->cut == number && (host->cut_up || host->cut_down)) BreakAgentEnd(stream);
    });
    world_.In(world_.Between(4 * kSecond, 60 * kSecond), [this, stream, host, number] {
      if (host->cut == number && (host->cut_up || host->cut_down)) BreakControllerEnd(stream);
    });
  }
  world_.In(for_ns, [this, host, number] {
    if (host->cut != number) return;
    host->cut_up = host->cut_down = false;
    host->side = 0;
    world_.Trace("healed " + host->node->name());
    Flush(host);
  });
}

void Simulation::Calm() {
  world_.Trace("calm");
  storm_ = false;
  controller_.CrashIn(0);
  controller_.Start();
  for (auto& [name, host] : hosts_) {
    ++host.cut;
    host.cut_up = host.cut_down = false;
    host.side = 0;
    host.node->CrashAgentIn(0);
    Flush(&host);
    if (host.dead_for_good) continue;
    host.node->PowerOn();
    host.node->StartAgent();
  }
}

}  // namespace dgxrun::sim
