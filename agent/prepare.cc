#include "agent/prepare.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/utf8.h"

namespace dgxrun::agent {
namespace {

std::string Join(const std::string& folder, const std::string& name) {
  return absl::StartsWith(name, "/") ? name : absl::StrCat(folder, "/", name);
}

// 0 or an errno.
int FolderError(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return errno;
  return S_ISDIR(st.st_mode) ? AccessError(path, X_OK) : ENOTDIR;
}

int FileError(const std::string& path, int mode) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return errno;
  return S_ISDIR(st.st_mode) ? EISDIR : AccessError(path, mode);
}

std::string Problem(const char* what, const std::string& path, int error) {
  if (error == ENOENT) return absl::StrCat(what, " ", path, " does not exist");
  return absl::StrCat(what, " ", path, ": ", strerror(error));
}

std::optional<std::string> ProgramProblem(const v1::Prepare& prepare) {
  const std::string& program = prepare.program();
  if (absl::StrContains(program, '/')) {
    const std::string path = Join(prepare.cwd(), program);
    const int error = FileError(path, X_OK);
    if (error == 0) return std::nullopt;
    return Problem("program", path, error);
  }
  const std::string path = prepare.path().empty() ? kDefaultPath : prepare.path();
  int seen = 0;  // as execvp: EACCES of one candidate says more than "not found"
  for (const auto folder : absl::StrSplit(path, ':')) {
    const std::string at = folder.empty() ? prepare.cwd() : Join(prepare.cwd(), std::string(folder));
    const int error = FileError(absl::StrCat(at, "/", program), X_OK);
    if (error == 0) return std::nullopt;
    if (error == EACCES) seen = EACCES;
  }
  if (seen == EACCES) return absl::StrCat("program ", program, ": found in PATH, but may not be executed");
  return absl::StrCat("program ", program, ": not found in PATH (", path, ")");
}

}  // namespace

v1::Prepared CheckPrepare(const v1::Prepare& prepare, const OwnerPolicy& policy, JudgeStop* stop) {
  v1::Prepared prepared;
  const auto fail = [&](const std::string& line) { prepared.add_errors(ToPrintable(line)); };
  const absl::StatusOr<OwnerIds> owner = ResolveOwner(prepare.owner(), policy);
  if (!owner.ok()) {
    fail(std::string(owner.status().message()));
    return prepared;
  }
  const OwnerScope scope(*owner);
  if (!scope.ok()) {
    fail(absl::StrCat("the agent cannot act as ", owner->user));
    return prepared;
  }
  if (!prepare.resume().empty()) {
    PutInOrder(prepare, stop, &prepared);
    for (std::string& note : *prepared.mutable_notes()) note = ToPrintable(note);
    return prepared;
  }
  if (const int error = FolderError(prepare.cwd()); error != 0) {
    fail(Problem("working folder", prepare.cwd(), error));
    return prepared;  // what is relative to it would only repeat this
  }
  if (!prepare.script().empty()) {
    const std::string script = Join(prepare.cwd(), prepare.script());
    if (const int error = FileError(script, R_OK); error != 0) fail(Problem("script", script, error));
  }
  if (!prepare.program().empty()) {
    if (const std::optional<std::string> problem = ProgramProblem(prepare)) fail(*problem);
  }
  if (!prepare.ckpt_dir().empty()) {
    if (absl::Status found = FindCheckpoints(prepare, stop, &prepared); !found.ok()) {
      fail(std::string(found.message()));
    }
  }
  return prepared;
}

}  // namespace dgxrun::agent
