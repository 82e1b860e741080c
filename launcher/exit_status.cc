#include "launcher/exit_status.h"

#include <signal.h>

#include "absl/strings/str_cat.h"

namespace dgxrun {
namespace {

struct Name {
  int signal;
  const char* name;
};
constexpr Name kNames[] = {
    {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},       {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"},     {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},     {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"},     {SIGTERM, "SIGTERM"}, {SIGSTKFLT, "SIGSTKFLT"},
    {SIGCHLD, "SIGCHLD"}, {SIGCONT, "SIGCONT"},     {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"},
    {SIGTTIN, "SIGTTIN"}, {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"}, {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGWINCH, "SIGWINCH"},
    {SIGIO, "SIGIO"},     {SIGPWR, "SIGPWR"},       {SIGSYS, "SIGSYS"},
};

}  // namespace

v1::ExitStatus ToExitStatus(const ChildEnd& end) {
  v1::ExitStatus exit;
  exit.set_code(end.signal != 0 ? 128 + end.signal : end.exit_code);
  exit.set_signal(end.signal);
  exit.set_core_dumped(end.core_dumped);
  return exit;
}

std::string SignalName(int signal) {
  for (const Name& entry : kNames) {
    if (entry.signal == signal) return entry.name;
  }
  if (signal == SIGRTMIN) return "SIGRTMIN";
  if (signal > SIGRTMIN && signal <= SIGRTMAX) return absl::StrCat("SIGRTMIN+", signal - SIGRTMIN);
  return absl::StrCat("signal ", signal);
}

std::string DescribeExit(const v1::ExitStatus& exit) {
  if (exit.signal() == 0) return absl::StrCat("exited with code ", exit.code());
  return absl::StrCat("killed by ", SignalName(exit.signal()), exit.core_dumped() ? " (core dumped)" : "");
}

}  // namespace dgxrun
