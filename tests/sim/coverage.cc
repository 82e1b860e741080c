// Which pairs of (state, input) a run has met. A pair that is reachable and never met is a hole in the storm,
// so a long enough run fails on it (sim --coverage).
#include "tests/sim/coverage.h"

#include "absl/strings/str_cat.h"

namespace dgxrun::sim {
namespace {

const char* PhaseName(core::Attempt::Phase phase) {
  switch (phase) {
    case core::Attempt::Phase::kPreparing:
      return "preparing";
    case core::Attempt::Phase::kLaunching:
      return "launching";
    case core::Attempt::Phase::kRunning:
      return "running";
    case core::Attempt::Phase::kStopping:
      return "stopping";
    case core::Attempt::Phase::kEnded:
      return "ended";
  }
  return "?";
}

std::string JobPhase(const core::State& state, const JobId& id) {
  const core::Job* job = core::FindJobById(state, id);
  if (job == nullptr) return "job archived";
  if (job->phase == core::Job::Phase::kEnded) return "job ended";
  if (!job->attempt || job->attempt->phase == core::Attempt::Phase::kEnded) return "job queued";
  return absl::StrCat("attempt ", PhaseName(job->attempt->phase));
}

std::string NodePhaseOf(const core::State& state, const NodeId& id) {
  const core::Node* node = core::FindNode(state, id);
  if (node == nullptr) return "node unknown";
  switch (node->phase) {
    case core::NodePhase::kUp:
      return "node up";
    case core::NodePhase::kLost:
      return "node lost";
    case core::NodePhase::kFenced:
      return "node fenced";
  }
  return "?";
}

const char* ReportName(const v1::Report& report) {
  switch (report.body_case()) {
    case v1::Report::kPrepared:
      return "prepared";
    case v1::Report::kRefused:
      return "refused";
    case v1::Report::kStarted:
      return "started";
    case v1::Report::kExited:
      return "exited";
    case v1::Report::kGone:
      return "gone";
    case v1::Report::kSpawnFailed:
      return "spawn failed";
    case v1::Report::kOutputLost:
      return "output lost";
    case v1::Report::BODY_NOT_SET:
      return "nothing";
  }
  return "?";
}

}  // namespace

void CoverInput(const core::State& state, const core::Contacts& contacts, const core::Input& input,
                std::set<std::string>* covered) {
  const auto met = [&](const std::string& where, const std::string& what) {
    covered->insert(absl::StrCat(where, ": ", what));
  };
  if (const auto* report = std::get_if<core::NodeReport>(&input.body)) {
    const JobId id(report->report.job_id());
    const core::Job* job = core::FindJobById(state, id);
    const bool old =
        job != nullptr && job->attempt && job->attempt->number.value() > report->report.attempt();
    if (old) return met("older attempt", ReportName(report->report));
    met(JobPhase(state, id), ReportName(report->report));
  } else if (const auto* connected = std::get_if<core::NodeConnected>(&input.body)) {
    const NodeId id(connected->hello.node_id());
    const core::Node* node = core::FindNode(state, id);
    const bool rebooted = node != nullptr && node->boot_id != connected->hello.boot_id();
    met(NodePhaseOf(state, id), rebooted ? "hello after a reboot" : "hello");
    const bool holds = connected->hello.snapshot().attempts_size() > 0;
    if (holds) met(NodePhaseOf(state, id), "hello with attempts");
  } else if (const auto* gone = std::get_if<core::NodeDisconnected>(&input.body)) {
    met(NodePhaseOf(state, gone->node), "disconnected");
  } else if (const auto* heartbeat = std::get_if<core::NodeHeartbeat>(&input.body)) {
    met(NodePhaseOf(state, heartbeat->node), "heartbeat");
  } else if (const auto* stop = std::get_if<core::StopJob>(&input.body)) {
    met(JobPhase(state, stop->job), "stop");
  } else if (const auto* fence = std::get_if<core::FenceNode>(&input.body)) {
    for (const auto& [id, node] : state.nodes) {
      if (node->name == fence->node) met(NodePhaseOf(state, id), "fence");
    }
  } else if (std::holds_alternative<core::Tick>(input.body)) {
    for (const auto& [id, node] : state.nodes) {
      if (node->phase != core::NodePhase::kLost) continue;
      const bool proof = core::NoLicenceSince(state, contacts, *node) == absl::InfiniteFuture();
      met(proof ? "node lost, committee silent" : "node lost, committee heard", "tick");
    }
  } else if (const auto* submit = std::get_if<core::SubmitJob>(&input.body)) {
    met(state.keys.count({submit->caller.uid, submit->key}) > 0 ? "key known" : "key new", "submit");
  } else if (std::holds_alternative<core::ControllerStarted>(input.body)) {
    met(state.cluster_id.empty() ? "log empty" : "log with records", "start");
  }
}

const std::set<std::string>& ReachablePairs() {
  static const auto* const kPairs = new std::set<std::string>{
#include "tests/sim/reachable_pairs.inc"
  };
  return *kPairs;
}

}  // namespace dgxrun::sim
