#include "launcher/exit_status.h"

#include "absl/strings/str_cat.h"
#include "proto/signal_names.h"

namespace dgxrun {

v1::ExitStatus ToExitStatus(const ChildEnd& end) {
  v1::ExitStatus exit;
  exit.set_code(end.signal != 0 ? 128 + end.signal : end.exit_code);
  exit.set_signal(end.signal);
  exit.set_core_dumped(end.core_dumped);
  return exit;
}

std::string DescribeExit(const v1::ExitStatus& exit) {
  if (exit.signal() == 0) return absl::StrCat("exited with code ", exit.code());
  return absl::StrCat("killed by ", SignalName(exit.signal()), exit.core_dumped() ? " (core dumped)" : "");
}

}  // namespace dgxrun
