// A shim with real ranks: start, exits, stop, output, what a rank sees.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "launcher/base/event_loop.h"
#include "launcher/run_dir.h"
#include "launcher/shim_start.h"
#include "tests/unit/launcher_harness.h"

namespace dgxrun::testing {
namespace {

class ShimTest : public ::testing::TestWithParam<bool> {
 protected:
  Harness harness_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Cgroup, ShimTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "WithCgroup" : "None"; });

std::vector<std::string> Sh(const std::string& script) { return {"sh", "-c", script}; }

TEST_P(ShimTest, OneRankFromStartToGone) {
  harness_.Start(harness_.Plan(1, {"true"}));
  std::optional<v1::ShimEvent> event = harness_.Next();
  ASSERT_TRUE(event && event->has_started());
  EXPECT_EQ(event->number(), 1u);
  EXPECT_GT(event->started().ranks(0).pid(), 0);
  EXPECT_EQ(event->started().log_dir(), harness_.folder());
  event = harness_.Next();
  ASSERT_TRUE(event && event->has_exited());
  EXPECT_EQ(event->exited().exit().code(), 0);
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.cause(), v1::CAUSE_UNSPECIFIED);
  EXPECT_EQ(gone.detail(), "");
  EXPECT_TRUE(harness_.GuardEnds());
  EXPECT_NE(access((harness_.run_dir() + "/shim.sock").c_str(), F_OK), 0);
  EXPECT_TRUE(harness_.NothingLeft());
  EXPECT_EQ(harness_.hello().shim_pid() > 0 && harness_.hello().guard_pid() > 0, true);
}

TEST_P(ShimTest, ExitCodesAndOrderOfFourRanks) {
  // Each rank but 2 waits for the file of the one before it in the order 2, 0, 3, 1.
  harness_.Start(
      harness_.Plan(4, Sh("case $RANK in 2) ;; 0) w=2;; 3) w=0;; 1) w=3;; esac\n"
                          "while [ -n \"$w\" ] && [ ! -e done$w ]; do sleep 0.01; done\n"
                          "[ -n \"$w\" ] && sleep 0.1\n"
                          "touch done$RANK; [ $RANK = 3 ] && kill -SEGV $$; exit $((RANK + 10))")));
  const v1::AttemptGone gone = harness_.UntilGone();
  ASSERT_EQ(gone.ranks_size(), 4);
  EXPECT_EQ(gone.ranks(2).exit_order(), 1u);
  EXPECT_EQ(gone.ranks(0).exit_order(), 2u);
  EXPECT_EQ(gone.ranks(3).exit_order(), 3u);
  EXPECT_EQ(gone.ranks(1).exit_order(), 4u);
  EXPECT_EQ(gone.ranks(0).exit().code(), 10);
  EXPECT_EQ(gone.ranks(1).exit().code(), 11);
  EXPECT_EQ(gone.ranks(3).exit().signal(), SIGSEGV);
  EXPECT_EQ(gone.ranks(3).exit().code(), 128 + SIGSEGV);
  for (const v1::RankReport& rank : gone.ranks()) EXPECT_FALSE(rank.after_stop());
}

TEST_P(ShimTest, EscapedGrandchildIsGoneAfterStop) {
  harness_.Start(harness_.Plan(2, Sh(absl::StrCat(DGXRUN_RANK_BINARY, " escape esc$RANK -1"))));
  const int first = harness_.PidFrom("esc0"), second = harness_.PidFrom("esc1");
  EXPECT_TRUE(Lives(first) && Lives(second));
  harness_.Stop(5000);
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_FALSE(Lives(first));
  EXPECT_FALSE(Lives(second));
  EXPECT_TRUE(gone.ranks(0).after_stop());
  EXPECT_EQ(gone.ranks(0).exit().signal(), SIGTERM);
  EXPECT_TRUE(harness_.GuardEnds());
  EXPECT_TRUE(harness_.NothingLeft());
}

TEST_P(ShimTest, EscapedGrandchildDiesWhenAllRanksSucceeded) {
  harness_.Start(harness_.Plan(1, harness_.Rank({"escape", harness_.File("esc"), "0"})));
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.ranks(0).exit().code(), 0);
  EXPECT_FALSE(Lives(harness_.PidFrom("esc")));
}

TEST_P(ShimTest, GraceEndsInSigkillAndASecondStopShortensIt) {
  harness_.Start(harness_.Plan(1, harness_.Rank({"stubborn", harness_.File("pid")})));
  harness_.PidFrom("pid");
  const absl::Time begin = absl::Now();
  harness_.Stop(600'000);
  harness_.Stop(50);
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.ranks(0).exit().signal(), SIGKILL);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(50));
}

TEST_P(ShimTest, PoliteRankEndsByItselfAlsoWhenStopped) {
  harness_.Start(harness_.Plan(1, harness_.Rank({"polite", harness_.File("pid")})));
  const int pid = harness_.PidFrom("pid");
  kill(pid, SIGSTOP);  // SIGTERM alone would wait for ever
  harness_.Stop(600'000);
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.ranks(0).exit().signal(), 0);
  EXPECT_EQ(gone.ranks(0).exit().code(), 0);
  EXPECT_TRUE(gone.ranks(0).after_stop());
}

struct BadStart {
  const char* name;
  std::vector<std::string> argv;
  const char* cwd;  // null: the folder
  const char* stage;
  const char* detail;
};

TEST_P(ShimTest, FailedStartsNameStageAndPath) {
  const BadStart cases[] = {
      {"missing program", {"no-such-program"}, nullptr, "exec", "no-such-program is not in the job's PATH"},
      {"missing path", {"/no/such/program"}, nullptr, "exec", "/no/such/program: No such file"},
      {"not executable", {"/etc/passwd"}, nullptr, "exec", "/etc/passwd: Permission denied"},
      {"no program in it", {"./text"}, nullptr, "exec", "./text: Exec format error"},
      {"missing interpreter", {"./script"}, nullptr, "exec", "the interpreter in its first line"},
      {"missing folder", {"true"}, "/no/such/folder", "chdir", "/no/such/folder: No such file"},
  };
  for (const BadStart& bad : cases) {
    SCOPED_TRACE(bad.name);
    Harness harness(GetParam());
    ASSERT_TRUE(WriteFileAtomically(harness.File("text"), "no program\n").ok());
    ASSERT_TRUE(WriteFileAtomically(harness.File("script"), "#!/no/such/interpreter\n").ok());
    chmod(harness.File("text").c_str(), 0755);
    chmod(harness.File("script").c_str(), 0755);
    v1::ShimStart start = harness.Plan(3, bad.argv);
    if (bad.cwd != nullptr) start.mutable_plan()->set_cwd(bad.cwd);
    harness.Start(start);
    std::optional<v1::ShimEvent> event = harness.Next();
    ASSERT_TRUE(event && event->has_spawn_failed()) << event->ShortDebugString();
    EXPECT_EQ(event->spawn_failed().stage(), bad.stage);
    EXPECT_NE(event->spawn_failed().error_number(), 0);
    EXPECT_NE(event->spawn_failed().detail().find(bad.detail), std::string::npos)
        << event->spawn_failed().detail();
    const v1::AttemptGone gone = harness.UntilGone();
    EXPECT_EQ(gone.cause(), v1::CAUSE_SPAWN_FAILED);
    EXPECT_TRUE(harness.GuardEnds());
    EXPECT_TRUE(harness.NothingLeft());
  }
}

TEST_P(ShimTest, OutputIsCompleteForPartialWritesOfFourRanks) {
  constexpr int kLines = 10'000;
  harness_.Start(harness_.Plan(4, harness_.Rank({"lines", absl::StrCat(kLines)})));
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.detail(), "");
  for (int rank = 0; rank < 4; ++rank) {
    std::string out, err;
    for (int i = 0; i < kLines; ++i) {
      const std::string line = absl::StrCat("rank ", rank, " line ", i, " of the output\n");
      out += line;
      if (i % 2 == 0) err += line;
    }
    EXPECT_TRUE(Slurp(harness_.File(absl::StrCat("rank_", rank, ".out"))) == out) << rank;
    EXPECT_TRUE(Slurp(harness_.File(absl::StrCat("rank_", rank, ".err"))) == err) << rank;
  }
}

TEST_P(ShimTest, LastWordsAreInTheFileWhenTheExitIsReported) {
  harness_.Start(harness_.Plan(1, Sh("echo Traceback >&2; exit 85")));
  while (std::optional<v1::ShimEvent> event = harness_.Next()) {
    if (!event->has_exited()) continue;
    EXPECT_EQ(event->exited().exit().code(), 85);
    EXPECT_EQ(Slurp(harness_.File("rank_0.err")), "Traceback\n");
    break;
  }
  harness_.UntilGone();
}

TEST_P(ShimTest, LogsThatCannotBeWrittenDoNotStopTheRanks) {
  v1::ShimStart start = harness_.Plan(1, harness_.Rank({"lines", "10"}));
  start.set_log_dir("/no/such/folder");
  harness_.Start(start);
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.ranks(0).exit().code(), 0);
  EXPECT_EQ(gone.detail(), "");
  size_t bytes = 0;  // what the rank writes
  for (int i = 0; i < 10; ++i)
    bytes += absl::StrCat("rank 0 line ", i, " of the output\n").size() * (2 - i % 2);
  EXPECT_EQ(gone.lost().bytes(), bytes);
  EXPECT_EQ(gone.lost().reason(), "/no/such/folder/rank_0.out: No such file or directory (and 1 more files)");
  int said = 0;
  for (const v1::ShimEvent& event : harness_.seen()) said += event.has_output_lost() ? 1 : 0;
  EXPECT_GE(said, 1);
  EXPECT_LE(said, 3);  // each time at least kLossStep times as much
}

TEST_P(ShimTest, LostOutputIsSaidAtOnceAndTheFileTellsItOnceItCanBeWritten) {
  v1::ShimStart start = harness_.Plan(
      1, Sh("printf 'lost line\nand a'; while [ ! -e go ]; do sleep 0.01; done; printf ' half\nkept\n'; "
            "[ ! -e never ]"));
  const std::string logs = harness_.File("logs");
  start.set_log_dir(logs);
  harness_.Start(start);
  std::optional<v1::ShimEvent> event;
  do {
    event = harness_.Next();
  } while (event && !event->has_output_lost());
  ASSERT_TRUE(event) << "the loss was not said while the rank runs";
  EXPECT_EQ(event->output_lost().bytes(), 15u);
  EXPECT_EQ(event->output_lost().reason(), logs + "/rank_0.out: No such file or directory");
  ASSERT_EQ(mkdir(logs.c_str(), 0700), 0);
  ASSERT_TRUE(WriteFileAtomically(harness_.File("go"), "").ok());
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.ranks(0).exit().code(), 0);
  EXPECT_EQ(gone.lost().bytes(), 15u);
  EXPECT_EQ(Slurp(logs + "/rank_0.out"),
            "[dgxrun: 15 bytes are missing here: No such file or directory]\n half\nkept\n");
}

TEST_P(ShimTest, ARankSeesItsEnvironmentAndThreeDescriptors) {
  v1::ShimStart start = harness_.Plan(1, Sh("echo $DGXRUN_MARK $DGXRUN_NODE $OURS $PWD >&2; "
                                            "ps -o sid= -p $$ >/dev/null; exec " DGXRUN_RANK_BINARY " fds"));
  for (auto [name, value] : {std::pair("OURS", "caller"), std::pair("TOKEN", "very-secret-value")}) {
    v1::EnvVar* var = start.mutable_environment()->add_vars();
    var->set_name(name);
    var->set_value(value);
  }
  v1::EnvVar* ours = start.mutable_plan()->add_common_env();
  ours->set_name("OURS");
  ours->set_value("plan");
  harness_.Start(start);
  std::optional<v1::ShimEvent> event = harness_.Next();
  ASSERT_TRUE(event && event->has_started());
  for (int pid : {harness_.hello().shim_pid(), harness_.hello().guard_pid()}) {
    for (const char* file : {"environ", "cmdline"}) {
      EXPECT_EQ(Slurp(absl::StrCat("/proc/", pid, "/", file)).find("very-secret"), std::string::npos);
    }
  }
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.ranks(0).exit().code(), 3);
  EXPECT_EQ(Slurp(harness_.File("rank_0.err")),
            absl::StrCat(start.mark(), " n1 plan ", harness_.folder(), "\n"));
}

TEST_P(ShimTest, AHeldPortCanBeServedByARank) {
  UniqueFd held(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1, zero = 0;
  setsockopt(held.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  setsockopt(held.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  ASSERT_EQ(bind(held.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  socklen_t size = sizeof address;
  getsockname(held.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin6_port);
  harness_.Start(harness_.Plan(1, harness_.Rank({"serve", absl::StrCat(port), harness_.File("served")})),
                 {held.get()});
  held.Reset();  // the shim's copy holds it
  EXPECT_EQ(harness_.UntilGone().ranks(0).exit().code(), 0);
  EXPECT_EQ(Slurp(harness_.File("served")), "ok");
}

TEST_P(ShimTest, ALaterAgentGetsTheEventsItDoesNotHave) {
  harness_.Start(harness_.Plan(1, harness_.Rank({"polite", harness_.File("pid")})));
  ASSERT_TRUE(harness_.Next()->has_started());
  const int pid = harness_.PidFrom("pid");
  harness_.CloseSocket();
  harness_.Attach(0);
  std::optional<v1::ShimEvent> again = harness_.Next();
  ASSERT_TRUE(again && again->has_started());
  EXPECT_EQ(again->number(), 1u);
  EXPECT_EQ(harness_.hello().snapshot().phase(), v1::ATTEMPT_PHASE_RUNNING);
  EXPECT_EQ(harness_.hello().last_event(), 1u);
  EXPECT_EQ(harness_.hello().snapshot().ranks(0).pid(), pid);
  harness_.Attach(1);  // replaces a connection that is still open
  harness_.Stop(600'000);
  std::optional<v1::ShimEvent> next = harness_.Next();
  ASSERT_TRUE(next && next->has_exited());
  EXPECT_EQ(next->number(), 2u);
  harness_.UntilGone();
}

TEST_P(ShimTest, RanksAndFilesBelongToTheOwner) {
  constexpr uint32_t kNobody = 65534;
  v1::ShimStart start = harness_.Plan(2, Sh("echo $(id -u) $(id -g)"));
  start.set_set_owner(true);
  start.mutable_plan()->mutable_owner()->set_uid(kNobody);
  start.mutable_plan()->mutable_owner()->set_gid(kNobody);
  if (geteuid() != 0) {  // then nobody else can be become, and that is said
    harness_.Start(start);
    std::optional<v1::ShimEvent> event = harness_.Next();
    ASSERT_TRUE(event && event->has_spawn_failed());
    EXPECT_EQ(event->spawn_failed().stage(), "setuid");
    return;
  }
  ASSERT_EQ(chown(harness_.folder().c_str(), kNobody, kNobody), 0);
  harness_.Start(start);
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.detail(), "");
  EXPECT_EQ(Slurp(harness_.File("rank_1.out")), "65534 65534\n");
  struct stat info;
  ASSERT_EQ(stat(harness_.File("rank_1.out").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kNobody);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_P(ShimTest, ASingleRankHasTheTerminal) {
  int in[2], out[2];
  ASSERT_EQ(pipe(in), 0);
  ASSERT_EQ(pipe(out), 0);
  UniqueFd in_read(in[0]), in_write(in[1]), out_read(out[0]), out_write(out[1]);
  v1::ShimStart start = harness_.Plan(1, Sh("read line; echo \"got $line\"; echo to the log >&2"));
  start.mutable_plan()->set_inherit_terminal(true);
  harness_.StartOnTerminal(start, in_read.get(), out_write.get());
  in_read.Reset();
  out_write.Reset();
  ASSERT_EQ(write(in_write.get(), "hello\n", 6), 6);
  EXPECT_EQ(harness_.UntilGone().ranks(0).exit().code(), 0);
  ASSERT_TRUE(harness_.GuardEnds());
  char text[64];
  ASSERT_EQ(read(out_read.get(), text, sizeof text), 10);
  EXPECT_EQ(std::string(text, 10), "got hello\n");
  EXPECT_EQ(read(out_read.get(), text, sizeof text), 0) << "somebody still holds the terminal";
  EXPECT_EQ(Slurp(harness_.File("rank_0.err")), "to the log\n");
  EXPECT_NE(access(harness_.File("rank_0.out").c_str(), F_OK), 0);
}

TEST_P(ShimTest, AFloodOfDyingChildrenIsGone) {
  // Forks on while it is being killed.
  harness_.Start(harness_.Plan(
      1, Sh("i=0; while [ $i -lt 60 ]; do setsid sh -c 'trap \"\" TERM; while :; do sleep 0.01; done' & "
            "i=$((i+1)); done; touch all; wait")));
  ASSERT_TRUE(Eventually([&] { return access(harness_.File("all").c_str(), F_OK) == 0; }));
  harness_.Stop(20);
  harness_.UntilGone();
  EXPECT_TRUE(harness_.GuardEnds());
  EXPECT_TRUE(harness_.NothingLeft());
}

TEST_P(ShimTest, AnUnknownCpuIsAWarning) {
  v1::ShimStart start = harness_.Plan(1, {"true"});
  start.mutable_plan()->mutable_ranks(0)->add_cpus(8000);
  harness_.Start(start);
  std::optional<v1::ShimEvent> event = harness_.Next();
  ASSERT_TRUE(event && event->has_started());
  ASSERT_EQ(event->started().warnings_size(), 1);
  EXPECT_NE(event->started().warnings(0).find("rank 0 is not bound"), std::string::npos);
  EXPECT_EQ(harness_.UntilGone().ranks(0).exit().code(), 0);
}

TEST_P(ShimTest, ManyShortRanksAreFast) {
  harness_.Start(harness_.Plan(16, {"true"}));
  const v1::AttemptGone gone = harness_.UntilGone();
  std::set<uint32_t> orders;
  for (const v1::RankReport& rank : gone.ranks()) orders.insert(rank.exit_order());
  EXPECT_EQ(orders.size(), 16u);
}

TEST(StartShimTest, ErrorsNameWhatIsWrong) {
  ShimStartOptions options;
  options.shim_binary = "/no/such/shim";
  options.run_dir = "/tmp";
  absl::StatusOr<StartedShim> started = StartShim(options);
  EXPECT_EQ(started.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(started.status().message().find("/no/such/shim"), std::string::npos);
  options.run_dir = "/" + std::string(120, 'x');
  EXPECT_EQ(StartShim(options).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ConnectShim("/tmp").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace dgxrun::testing
