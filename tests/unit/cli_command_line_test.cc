#include <string>
#include <vector>

#include "cli/command_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/base/nearest_word.h"

namespace dgxrun::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

template <class T>
T Parsed(const Words& words) {
  auto command = ParseCommandLine(words);
  EXPECT_TRUE(command.ok()) << command.status();
  if (!command.ok() || !std::holds_alternative<T>(*command)) {
    ADD_FAILURE() << "another command than expected";
    return T();
  }
  return std::get<T>(*command);
}

std::string ErrorOf(const Words& words) {
  auto command = ParseCommandLine(words);
  if (command.ok()) return "(no error)";
  EXPECT_TRUE(absl::IsInvalidArgument(command.status()));
  EXPECT_EQ(command.status().message().find('\n'), std::string::npos) << "more than one line";
  return std::string(command.status().message());
}

TEST(CommandLine, WhatFollowsTheScriptBelongsToIt) {
  const auto o = Parsed<LaunchOptions>({"-g", "2", "train.py", "--lr", "3e-4", "-n", "9", "--help", "-g0"});
  EXPECT_EQ(o.ranks_per_node, 2u);
  EXPECT_EQ(o.nodes, 0u);
  EXPECT_EQ(o.script, "train.py");
  EXPECT_THAT(o.script_args, ElementsAre("--lr", "3e-4", "-n", "9", "--help", "-g0"));
}

TEST(CommandLine, Defaults) {
  const auto o = Parsed<LaunchOptions>({"train.py"});
  EXPECT_EQ(o.nodes, 0u);
  EXPECT_EQ(o.ranks_per_node, 1u);
  EXPECT_EQ(o.device, v1::DEVICE_AUTO);
  EXPECT_EQ(o.grace, absl::Seconds(30));
  EXPECT_EQ(o.max_restarts, 3u);
  EXPECT_TRUE(o.exports.all);
}

TEST(CommandLine, SpellingsOfNodesAndRanks) {
  for (const Words& words : {Words{"-n", "2", "-g", "4", "t.py"}, Words{"-N2", "-g4", "t.py"},
                             Words{"--nodes=2", "--gpus-per-node=4", "t.py"},
                             Words{"--nodes", "2", "--nproc_per_node", "4", "t.py"},
                             Words{"--nodes", "2", "--nproc-per-node=4", "--", "t.py"}}) {
    const auto o = Parsed<LaunchOptions>(words);
    EXPECT_EQ(o.nodes, 2u);
    EXPECT_EQ(o.ranks_per_node, 4u);
    EXPECT_EQ(o.script, "t.py");
  }
  EXPECT_EQ(Parsed<LaunchOptions>({"-g", "all", "t.py"}).ranks_per_node, 0u);
  EXPECT_EQ(Parsed<LaunchOptions>({"-g", "1", "-g", "3", "t.py"}).ranks_per_node, 3u)
      << "the last one counts";
}

TEST(CommandLine, CheckpointOptions) {
  const auto o = Parsed<LaunchOptions>({"-n", "4", "--ckpt-dir", "c", "--on-reset", "stop", "--last_step",
                                        "900", "--ckpt-keep=2,1000", "--elastic", "3", "t.py"});
  EXPECT_TRUE(o.checkpoints.policy.stop_on_reset());
  EXPECT_EQ(o.checkpoints.policy.last_step(), 900u);
  EXPECT_EQ(o.checkpoints.policy.keep_last(), 2u);
  EXPECT_EQ(o.checkpoints.policy.keep_every(), 1000u);
  EXPECT_EQ(o.checkpoints.min_nodes, 3u);
  EXPECT_THAT(ErrorOf({"--on-reset", "stop", "t.py"}), HasSubstr("needs --ckpt-dir"));
  EXPECT_THAT(ErrorOf({"--ckpt-keep", "2", "t.py"}), HasSubstr("needs --ckpt-dir"));
  EXPECT_THAT(ErrorOf({"--ckpt-dir", "c", "--on-reset", "no", "t.py"}), HasSubstr("warn or stop"));
  for (const char* keep : {"0", "x", "1,0", "1,2,3", "-1"}) {
    EXPECT_THAT(ErrorOf({"--ckpt-dir", "c", "--ckpt-keep", keep, "t.py"}), HasSubstr("LAST,EVERY")) << keep;
  }
  EXPECT_THAT(ErrorOf({"--last-step", "0", "t.py"}), HasSubstr("--last-step 0"));
  EXPECT_THAT(ErrorOf({"-n", "2", "--elastic", "3", "t.py"}), HasSubstr("more than the 2 of -n"));
  EXPECT_THAT(ErrorOf({"-n", "2", "--elastic", "0", "t.py"}), HasSubstr("least number of nodes"));
}

TEST(CommandLine, Ckpt) {
  const auto ls = Parsed<CkptOptions>({"ckpt", "ls", "dir", "--deep", "--json"});
  EXPECT_EQ(ls.what, CkptOptions::What::kLs);
  EXPECT_TRUE(ls.deep && ls.json);
  EXPECT_THAT(Parsed<CkptOptions>({"ckpt", "verify", "a", "b"}).paths, ElementsAre("a", "b"));
  EXPECT_TRUE(Parsed<CkptOptions>({"ckpt", "pin", "dir", "x", "--remove"}).remove);
  const auto prune =
      Parsed<CkptOptions>({"ckpt", "prune", "dir", "--keep-last", "2", "--keep-every", "1000", "--dry-run"});
  EXPECT_EQ(prune.keep_last, 2u);
  EXPECT_EQ(prune.keep_every, 1000u);
  EXPECT_TRUE(prune.dry_run);
  EXPECT_THAT(ErrorOf({"ckpt"}), HasSubstr("ls|verify|pin|prune"));
  EXPECT_THAT(ErrorOf({"ckpt", "rm", "dir"}), HasSubstr("ls|verify|pin|prune"));
  EXPECT_THAT(ErrorOf({"ckpt", "ls", "a", "b"}), HasSubstr("takes one folder"));
  EXPECT_THAT(ErrorOf({"ckpt", "prune", "dir"}), HasSubstr("needs --keep-last"));
  EXPECT_THAT(ErrorOf({"ckpt", "prune", "dir", "--keep-last", "0"}), HasSubstr("a number from 1"));
  EXPECT_THAT(ErrorOf({"ckpt", "ls", "dir", "--dry-run"}), HasSubstr("belong to dgxrun ckpt prune"));
  EXPECT_THAT(ErrorOf({"ckpt", "prune", "dir", "--keep-last", "1", "--deep"}), HasSubstr("--deep belongs"));
  EXPECT_THAT(ErrorOf({"ckpt", "ls", "dir", "--remove"}), HasSubstr("--remove belongs"));
}

TEST(CommandLine, EveryLaunchOption) {
  const auto o =
      Parsed<LaunchOptions>({"--device", "cpu", "--cluster", "dev", "--name", "run1", "--grace", "1m30s",
                             "--max-restarts", "0", "--ckpt-dir", "ck", "--resume-arg", "--resume '{} x'",
                             "--export", "NONE,A,B=c=d", "--log-all", "-m", "pkg.train"});
  EXPECT_EQ(o.device, v1::DEVICE_CPU);
  EXPECT_EQ(o.cluster, "dev");
  EXPECT_EQ(o.name, "run1");
  EXPECT_EQ(o.grace, absl::Seconds(90));
  EXPECT_EQ(o.max_restarts, 0u);
  EXPECT_EQ(o.ckpt_dir, "ck");
  EXPECT_THAT(o.resume_args, ElementsAre("--resume", "{} x"));
  EXPECT_FALSE(o.exports.all);
  EXPECT_THAT(o.exports.names, ElementsAre("A"));
  EXPECT_THAT(o.exports.values, ElementsAre(std::pair<std::string, std::string>("B", "c=d")));
  EXPECT_TRUE(o.log_all);
  EXPECT_TRUE(o.module);
  EXPECT_EQ(o.script, "pkg.train");
}

TEST(CommandLine, ASubcommandIsOnlyTheFirstWord) {
  EXPECT_EQ(Parsed<StatusOptions>({"status"}).job, "");
  EXPECT_EQ(Parsed<LaunchOptions>({"run", "status"}).script, "status");
  EXPECT_EQ(Parsed<LaunchOptions>({"-g", "2", "status"}).script, "status");
  EXPECT_EQ(Parsed<LaunchOptions>({"./status"}).script, "./status");
}

TEST(CommandLine, Subcommands) {
  const auto status = Parsed<StatusOptions>({"status", "abc-1", "--json", "--cluster", "x"});
  EXPECT_EQ(status.job, "abc-1");
  EXPECT_TRUE(status.json);
  EXPECT_EQ(status.cluster, "x");
  const auto logs = Parsed<LogsOptions>({"logs", "-r", "4,0-2", "j", "-f", "--attempt", "1"});
  EXPECT_THAT(logs.ranks, ElementsAre(0u, 1u, 2u, 4u));
  EXPECT_TRUE(logs.follow);
  EXPECT_EQ(logs.attempt, 1u);
  EXPECT_EQ(Parsed<WhyOptions>({"why", "--json"}).json, true);
  EXPECT_EQ(Parsed<StopOptions>({"stop", "j", "--grace", "0"}).grace, absl::ZeroDuration());
  const auto attach = Parsed<AttachOptions>({"attach", "j", "--cluster", "x", "--log-all"});
  EXPECT_EQ(attach.job, "j");
  EXPECT_EQ(attach.cluster, "x");
  EXPECT_TRUE(attach.log_all);
  EXPECT_TRUE(Parsed<LaunchOptions>({"-n", "2", "--detach", "t.py"}).detach);
  EXPECT_TRUE(Parsed<LaunchOptions>({"--cluster", "c", "--detach", "t.py"}).detach);
  EXPECT_EQ(Parsed<ClusterCheckOptions>({"cluster", "check", "f.toml"}).cluster, "f.toml");
  EXPECT_EQ(Parsed<DevOptions>({"dev", "up", "-n", "3"}).nodes, 3u);
  EXPECT_EQ(Parsed<DevOptions>({"dev", "down"}).what, DevOptions::What::kDown);
  const auto init = Parsed<ClusterInitOptions>(
      {"cluster", "init", "d", "--host", "a", "--host", "10.0.0.1", "--user", "u"});
  EXPECT_EQ(init.dir, "d");
  EXPECT_THAT(init.hosts, ElementsAre("a", "10.0.0.1"));
  EXPECT_THAT(init.users, ElementsAre("u"));
  EXPECT_THAT(Parsed<ShowText>({"--help"}).text, HasSubstr("dgxrun -g 2 train.py"));
  EXPECT_THAT(Parsed<ShowText>({"logs", "--help"}).text, HasSubstr("--follow"));
  EXPECT_THAT(Parsed<ShowText>({"--version"}).text, HasSubstr("dgxrun "));
}

TEST(CommandLine, Errors) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("no script given"));
  EXPECT_THAT(ErrorOf({"-g", "2"}), HasSubstr("no script given"));
  EXPECT_THAT(ErrorOf({"-n", "0", "t.py"}), HasSubstr("-n 0"));
  EXPECT_THAT(ErrorOf({"-g", "0", "t.py"}), HasSubstr("-g 0"));
  EXPECT_THAT(ErrorOf({"-g", "x", "t.py"}), HasSubstr("\"all\""));
  EXPECT_THAT(ErrorOf({"-g", "-1", "t.py"}), HasSubstr("-g -1"));
  EXPECT_THAT(ErrorOf({"--max-restart", "2", "t.py"}), HasSubstr("did you mean --max-restarts?"));
  EXPECT_THAT(ErrorOf({"--nodess", "2", "t.py"}), HasSubstr("did you mean --nodes?"));
  EXPECT_THAT(ErrorOf({"--frobnicate", "t.py"}), HasSubstr("unknown option --frobnicate"));
  EXPECT_THAT(ErrorOf({"-x", "t.py"}), HasSubstr("unknown option -x"));
  EXPECT_THAT(ErrorOf({"-n"}), HasSubstr("-n needs a value"));
  EXPECT_THAT(ErrorOf({"--log-all=yes", "t.py"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"--device", "tpu", "t.py"}), HasSubstr("auto, gpu or cpu"));
  EXPECT_THAT(ErrorOf({"--grace", "soon", "t.py"}), HasSubstr("--grace"));
  EXPECT_THAT(ErrorOf({"--name", "a/b", "t.py"}), HasSubstr("--name a/b"));
  EXPECT_THAT(ErrorOf({"-m", "--no-python", "t"}), HasSubstr("exclude each other"));
  EXPECT_THAT(ErrorOf({"--resume-arg", "--r {}", "t.py"}), HasSubstr("--ckpt-dir"));
  EXPECT_THAT(ErrorOf({"staus"}), HasSubstr("did you mean status?"));
  EXPECT_THAT(ErrorOf({"status", "a", "b"}), HasSubstr("one job"));
  EXPECT_THAT(ErrorOf({"status", "../x"}), HasSubstr("neither"));
  EXPECT_THAT(ErrorOf({"logs", "--folow"}), HasSubstr("--follow"));
  EXPECT_THAT(ErrorOf({"dev", "sideways"}), HasSubstr("up, down or status"));
  EXPECT_THAT(ErrorOf({"cluster"}), HasSubstr("cluster init DIR"));
  EXPECT_THAT(ErrorOf({"cluster", "check"}), HasSubstr("cluster check NAME|FILE"));
  EXPECT_THAT(ErrorOf({"cluster", "check", "f", "--user", "u"}), HasSubstr("--user belongs to"));
  EXPECT_THAT(ErrorOf({"cluster", "init", ""}), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf({"attach", "a", "b"}), HasSubstr("one job"));
  EXPECT_THAT(ErrorOf({"atach"}), HasSubstr("did you mean attach?"));
  EXPECT_THAT(ErrorOf({"--detach", "t.py"}), HasSubstr("--detach needs a cluster"));
}

// Mostly a shell variable that is not set.
TEST(CommandLine, AnEmptyValueIsAnError) {
  for (const char* option : {"-n", "-g", "--device", "--cluster", "--name", "--grace", "--max-restarts",
                             "--ckpt-dir", "--resume-arg", "--export"}) {
    EXPECT_THAT(ErrorOf({option, "", "t.py"}), HasSubstr(std::string(option) + " needs a value")) << option;
  }
  EXPECT_THAT(ErrorOf({"--ckpt-dir=", "t.py"}), HasSubstr("--ckpt-dir needs a value"));
  EXPECT_THAT(ErrorOf({"status", "--cluster", ""}), HasSubstr("--cluster needs a value"));
}

TEST(CommandLine, Durations) {
  EXPECT_EQ(*ParseDurationWord("30"), absl::Seconds(30));
  EXPECT_EQ(*ParseDurationWord("0.5"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDurationWord("500ms"), absl::Milliseconds(500));
  for (const char* bad : {"", "-1", "abc", "1x", "1e99", "nan", "25h", "-1s"}) {
    EXPECT_FALSE(ParseDurationWord(bad).ok()) << bad;
  }
}

TEST(CommandLine, RankLists) {
  EXPECT_THAT(*ParseRankList("3"), ElementsAre(3u));
  EXPECT_THAT(*ParseRankList("0-2,2,1"), ElementsAre(0u, 1u, 2u));
  for (const char* bad : {"", "a", "1-", "-1", "3-1", "1,,2", "0-4000000000"}) {
    EXPECT_FALSE(ParseRankList(bad).ok()) << bad;
  }
}

TEST(CommandLine, ShellWords) {
  EXPECT_THAT(*SplitShellWords("--resume {}"), ElementsAre("--resume", "{}"));
  EXPECT_THAT(*SplitShellWords("  a\t'b c' \"d \\\" e\" f\\ g '' "),
              ElementsAre("a", "b c", "d \" e", "f g", ""));
  EXPECT_THAT(*SplitShellWords("\"a\\nb\""), ElementsAre("a\\nb"));
  EXPECT_TRUE(SplitShellWords("")->empty());
  for (const char* bad : {"'a", "\"a", "a\\"}) EXPECT_FALSE(SplitShellWords(bad).ok()) << bad;
}

TEST(CommandLine, NearestWord) {
  EXPECT_EQ(NearestWord("--grce", {"--grace", "--name"}), "--grace");
  EXPECT_EQ(NearestWord("xy", {"ab"}), "");
  EXPECT_EQ(NearestWord("completely", {"status"}), "");
}

}  // namespace
}  // namespace dgxrun::cli
