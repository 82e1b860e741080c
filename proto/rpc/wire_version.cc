#include "proto/rpc/wire_version.h"

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"
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

void SayWireVersion(grpc::ClientContext* context) {
  const v1::WireVersion ours = OurWireVersion();
  context->AddMetadata(kWireVersionKey, absl::StrCat(ours.major(), ".", ours.minor(), " ", ours.release()));
}

absl::Status CheckSaidVersion(const grpc::ServerContextBase& context, const std::string& peer) {
  const auto said = context.client_metadata().find(kWireVersionKey);
  if (said == context.client_metadata().end()) return absl::OkStatus();
  const absl::string_view word(said->second.data(), said->second.size());
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits(' ', 1));
  const std::pair<absl::string_view, absl::string_view> numbers =
      absl::StrSplit(parts.first, absl::MaxSplits('.', 1));
  uint32_t major = 0, minor = 0;
  if (!absl::SimpleAtoi(numbers.first, &major) || !absl::SimpleAtoi(numbers.second, &minor)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kWireVersionKey, " of ", peer, " is no version: \"", absl::CEscape(word), "\""));
  }
  v1::WireVersion theirs;
  theirs.set_major(major);
  theirs.set_minor(minor);
  theirs.set_release(std::string(parts.second));
  return CheckWireVersion(theirs, peer);
}

}  // namespace dgxrun
