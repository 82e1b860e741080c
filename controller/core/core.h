// The heart: pure functions over State (durable) and Contacts (volatile). One thread calls them; none of
// them reads a clock, does I/O or draws a random number.
//
//   Observe(contacts, state, input)   what was heard; never logged
//   Decide(state, contacts, input)    every rule; returns the records that make it true, and answers
//   Apply(state, record)              the only way state changes; the same live, on recovery and in tests
//   Reconcile(state, contacts, scope) what should be sent, given state and contacts; idempotent
//
// The engine: Observe, Decide, persist records, Apply, Reconcile, perform effects, answer.
// The order inside one input is fixed; several inputs may share one commit.
#ifndef DGXRUN_CONTROLLER_CORE_CORE_H_
#define DGXRUN_CONTROLLER_CORE_CORE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "controller/core/effect.h"
#include "controller/core/input.h"
#include "controller/core/model.h"
#include "dgxrun/v1/job.pb.h"
#include "dgxrun/v1/node.pb.h"
#include "dgxrun/v1/record.pb.h"

namespace dgxrun::core {

struct Decision {
  std::vector<v1::Record> records;  // in order; empty: nothing to remember
  std::vector<Answer> answers;
};

// What Reconcile looks at: the jobs and nodes that an input touched, or everything.
struct Scope {
  bool everything = false;
  std::vector<JobId> jobs;
  std::vector<NodeId> nodes;
};

void Observe(Contacts* contacts, const State& state, const Input& input);
Decision Decide(const State& state, const Contacts& contacts, const Input& input);
void Apply(State* state, const v1::Record& record);
// Scope of an input: call after Apply, with the records that Decide returned.
Scope Touched(const State& state, const Input& input, const std::vector<v1::Record>& records);
// The job that a record is about; empty for records of nodes and of the cluster, and for JobArchived.
JobId JobOfRecord(const v1::Record& record);
std::vector<Effect> Reconcile(const State& state, const Contacts& contacts, const Scope& scope);

// The record by which an ended job leaves the state, for the engine when it performs ArchiveJob. The engine
// keeps DescribeJob's answer first, then drops the job's other records and appends this one in one commit.
v1::Record ArchivedRecord(const State& state, const JobId& job, absl::Time now);

// For status: a job as a person sees it. The job must exist in `state`.
v1::JobStatus DescribeJob(const State& state, const Contacts& contacts, const JobId& job, absl::Time now);
v1::NodeInfo DescribeNode(const State& state, const Contacts& contacts, const NodeId& node, absl::Time now);
// `what`: id, name (the newest of that name), or empty (the newest that the caller owns). NotFound names it.
absl::StatusOr<JobId> FindJob(const State& state, const Caller& caller, const std::string& what);

enum class Verb { kSubmit, kSee, kStop, kReadLogs, kSeeNodes, kFenceNode };
// OK, or PermissionDenied with a line that names the owner. `owner` is null for verbs without a job.
absl::Status Authorize(const Caller& caller, Verb verb, const v1::Owner* owner);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_CORE_H_
