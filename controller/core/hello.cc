#include "controller/core/hello.h"

#include "absl/strings/str_cat.h"
#include "controller/core/peers.h"
#include "proto/wire_rule.h"

namespace dgxrun::core {
namespace {

v1::Refused Refuse(std::string reason, bool final) {
  v1::Refused refused;
  refused.set_reason(std::move(reason));
  refused.set_final(final);
  return refused;
}

}  // namespace

std::optional<v1::Refused> JudgeHello(const State& state, const Contacts& contacts, const v1::Hello& hello) {
  const v1::WireVersion& ours = contacts.config.version;
  if (!WireVersionsAgree(hello.version(), ours)) {
    return Refuse(absl::StrCat("agent ", hello.version().release(), " speaks version ",
                               hello.version().major(), ".", hello.version().minor(), ", controller ",
                               ours.release(), " speaks ", ours.major(), ".", ours.minor()),
                  true);
  }
  if (!IsValidName(hello.node_id())) return Refuse("the node id is not valid", true);
  if (!IsValidName(hello.node_name())) {
    return Refuse(absl::StrCat("the node name '", hello.node_name(), "' must match [A-Za-z0-9._-]{1,64}"),
                  true);
  }
  const bool peers = contacts.config.peers.has_value();
  if (!peers && !hello.cluster_id().empty() && hello.cluster_id() != state.cluster_id) {
    return Refuse(
        absl::StrCat("the agent belongs to cluster ", hello.cluster_id(), ", this is ", state.cluster_id),
        true);
  }
  if (!peers && hello.term() > state.term) {
    return Refuse(absl::StrCat("the agent has served term ", hello.term(), ", this controller is at ",
                               state.term, ": its log is older than the cluster"),
                  true);
  }
  for (const auto& [id, node] : state.nodes) {
    if (node->name != hello.node_name() || id.str() == hello.node_id()) continue;
    if (IsConnected(contacts, id)) {
      return Refuse(absl::StrCat("the name ", node->name, " is taken by node ", id.str(),
                                 "; give each node a [agent] name of its own"),
                    true);
    }
    if (!JobsOn(state, id).empty()) {
      return Refuse(absl::StrCat("node ", id.str(), " of the same name still holds a job"), false);
    }
  }
  if (peers) return JudgePeer(state, contacts, hello);
  return std::nullopt;
}

}  // namespace dgxrun::core
