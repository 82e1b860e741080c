// Messages as another release would have sent them: read by the descriptors of that release, without what
// they do not know, and with that release's version where a version is said.
//
// The descriptors live in a pool of their own, so two releases of one package can be in one process.
#ifndef DGXRUN_TESTS_CONTRACT_OLD_WIRE_H_
#define DGXRUN_TESTS_CONTRACT_OLD_WIRE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace dgxrun {

class OldWire {
 public:
  // `descriptors`: a file made by protoc --descriptor_set_out --include_imports.
  static absl::StatusOr<std::unique_ptr<OldWire>> Load(const std::string& descriptors, uint32_t say_major,
                                                       uint32_t say_minor);
  virtual ~OldWire() = default;

  // `method`: "/dgxrun.v1.AgentLink/Connect". NotFound: that release has no such method. Any thread.
  virtual absl::StatusOr<std::string> Request(const std::string& method, const std::string& bytes) = 0;
  virtual absl::StatusOr<std::string> Reply(const std::string& method, const std::string& bytes) = 0;
};

}  // namespace dgxrun

#endif  // DGXRUN_TESTS_CONTRACT_OLD_WIRE_H_
