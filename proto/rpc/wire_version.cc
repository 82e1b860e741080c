#include "proto/rpc/wire_version.h"

#include "absl/strings/str_cat.h"
#include "proto/wire_rule.h"

namespace dgxrun {
namespace {

constexpr uint32_t kMajor = 1;
constexpr uint32_t kMinor = 1;

std::string Describe(const v1::WireVersion& version) {
  return absl::StrCat(version.major(), ".", version.minor(), " (release ",
                      version.release().empty() ? "unknown" : version.release(), ")");
}

}  // namespace

v1::WireVersion OurWireVersion() {
  v1::WireVersion version;
  version.set_major(kMajor);
  version.set_minor(kMinor);
  version.set_release(DGXRUN_VERSION);
  return version;
}

absl::Status CheckWireVersion(const v1::WireVersion& theirs, const std::string& peer) {
  if (WireVersionsAgree(theirs, OurWireVersion())) return absl::OkStatus();
  const bool we_are_older = kMajor < theirs.major() || (kMajor == theirs.major() && kMinor < theirs.minor());
  return absl::FailedPreconditionError(absl::StrCat(
      peer, " speaks wire version ", Describe(theirs), ", this side ", Describe(OurWireVersion()),
      "; they must have the same major and differ by at most one minor: upgrade ",
      we_are_older ? "this side" : peer));
}

}  // namespace dgxrun
