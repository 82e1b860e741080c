#include "controller/core/model.h"

#include <vector>

namespace dgxrun::core {

const Job* FindJobById(const State& state, const JobId& id) {
  auto it = state.jobs.find(id);
  return it == state.jobs.end() ? nullptr : &*it->second;
}

const Node* FindNode(const State& state, const NodeId& id) {
  auto it = state.nodes.find(id);
  return it == state.nodes.end() ? nullptr : &*it->second;
}

const AttemptNode* FindShare(const Attempt& attempt, const NodeId& node) {
  for (const auto& share : attempt.nodes) {
    if (share->node == node) return &*share;
  }
  return nullptr;
}

bool IsConnected(const Contacts& contacts, const NodeId& node) {
  auto it = contacts.nodes.find(node);
  return it != contacts.nodes.end() && it->second.connection != 0;
}

const Attempt* LiveAttempt(const Job& job) {
  if (!job.attempt || job.attempt->phase == Attempt::Phase::kEnded) return nullptr;
  return &*job.attempt;
}

bool HoldsNode(const Job& job, const NodeId& node) {
  const Attempt* attempt = LiveAttempt(job);
  if (attempt == nullptr) return false;
  const AttemptNode* share = FindShare(*attempt, node);
  return share != nullptr && share->phase != AttemptNode::Phase::kGone;
}

std::vector<JobId> JobsOn(const State& state, const NodeId& node) {
  std::vector<JobId> jobs;
  for (const auto& [id, job] : state.jobs) {
    if (HoldsNode(*job, node)) jobs.push_back(id);
  }
  return jobs;
}

bool IsEnded(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_STOPPED;
}

}  // namespace dgxrun::core
