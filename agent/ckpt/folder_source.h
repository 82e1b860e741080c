// OpenFolder() with the choice that only a test makes: without openat2 the way beneath the root is walked
// name by name with O_NOFOLLOW, as on kernels before 5.6.
#ifndef DGXRUN_AGENT_CKPT_FOLDER_SOURCE_H_
#define DGXRUN_AGENT_CKPT_FOLDER_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/ckpt/source.h"

namespace dgxrun::agent::ckpt {

absl::StatusOr<std::unique_ptr<Source>> OpenFolderWith(const std::string& folder, bool use_openat2);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_FOLDER_SOURCE_H_
