// Who may do what. Pure; who the caller is was established by the service.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "controller/core/core.h"

namespace dgxrun::core {

absl::Status Authorize(const Caller& caller, Verb verb, const v1::Owner* owner) {
  switch (verb) {
    case Verb::kSubmit:
    case Verb::kSeeNodes:
      return absl::OkStatus();  // whoever was let in; what a job may run as is its owner, the caller
    case Verb::kFenceNode:      // a wrong word lets two attempts run at once
      if (caller.admin) return absl::OkStatus();
      return absl::PermissionDeniedError(
          absl::StrCat("only root may say that a node is off, you are ", caller.user));
    case Verb::kSee:
    case Verb::kStop:
    case Verb::kReadLogs:
      break;
  }
  if (owner == nullptr) return absl::PermissionDeniedError("no job was named");
  if (caller.admin || caller.uid == owner->uid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the job belongs to ", owner->user(), ", you are ", caller.user));
}

}  // namespace dgxrun::core
