// Names of signals, for people. The one table: the core (which may not link the launcher) and the launcher
// both use it.
#ifndef DGXRUN_PROTO_SIGNAL_NAMES_H_
#define DGXRUN_PROTO_SIGNAL_NAMES_H_

#include <signal.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace dgxrun {

struct NamedSignal {
  int number;
  const char* name;
};
inline constexpr NamedSignal kNamedSignals[] = {
    {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},       {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"},     {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},     {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"},     {SIGTERM, "SIGTERM"}, {SIGSTKFLT, "SIGSTKFLT"},
    {SIGCHLD, "SIGCHLD"}, {SIGCONT, "SIGCONT"},     {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"},
    {SIGTTIN, "SIGTTIN"}, {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"}, {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGWINCH, "SIGWINCH"},
    {SIGIO, "SIGIO"},     {SIGPWR, "SIGPWR"},       {SIGSYS, "SIGSYS"},
};

// "SIGSEGV", "SIGRTMIN+5", "signal 77" for what has no name.
inline std::string SignalName(int signal) {
  for (const NamedSignal& entry : kNamedSignals) {
    if (entry.number == signal) return entry.name;
  }
  if (signal == SIGRTMIN) return "SIGRTMIN";
  if (signal > SIGRTMIN && signal <= SIGRTMAX) return absl::StrCat("SIGRTMIN+", signal - SIGRTMIN);
  return absl::StrCat("signal ", signal);
}

}  // namespace dgxrun

#endif  // DGXRUN_PROTO_SIGNAL_NAMES_H_
