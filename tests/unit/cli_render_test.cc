#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/clock.h"
#include "cli/render.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dgxrun::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;

v1::JobStatus Job() {
  v1::JobStatus job;
  job.set_job_id("3f2a1c-1");
  job.set_name("bert");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_attempt(1);
  job.set_restarts(1);
  job.set_max_restarts(3);
  job.set_nodes_wanted(2);
  job.set_ranks_per_node(1);
  job.set_cluster("dev");
  job.set_on_cpu(true);
  job.set_cwd("/home/u");
  for (const char* word : {"python", "-u", "train.py", "HF_TOKEN=abc"}) job.add_argv(word);
  job.set_submitted_unix_ns(1000 * kSecond);
  job.set_started_unix_ns(1060 * kSecond);
  for (int n = 0; n < 2; ++n) {
    v1::JobNodeStatus* node = job.add_nodes();
    node->set_name("node" + std::to_string(n + 1));
    node->set_state(v1::NODE_STATE_UP);
    node->set_log_dir("/logs/3f2a1c-1/attempt_1");
    v1::RankStatus* rank = node->add_ranks();
    rank->set_rank(static_cast<uint32_t>(n));
    rank->set_pid(100 + n);
    rank->set_state(v1::RANK_STATE_RUNNING);
  }
  v1::Why* why = job.mutable_why();
  why->set_cause(v1::CAUSE_SIGNAL);
  why->set_rank(1);
  why->set_node("node2");
  why->set_detail("killed by SIGKILL");
  why->add_stderr_tail("boom\x1b[31m");
  why->mutable_exit()->set_code(137);
  why->mutable_exit()->set_signal(9);
  job.mutable_checkpoint()->set_path("ckpt/step_20.pt");
  job.mutable_checkpoint()->set_step(20);
  return job;
}

v1::JobStatus EndedJob() {
  v1::JobStatus job = Job();
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_ended_unix_ns(1100 * kSecond);
  job.set_exit_code(137);
  job.mutable_why()->set_attempt(1);
  return job;
}

TEST(Render, Status) {
  EXPECT_EQ(RenderStatus(Job(), absl::FromUnixSeconds(1125)),
            "job        3f2a1c-1 (bert)\n"
            "state      running, attempt 1 (restart 1 of 3)\n"
            "where      2 nodes × 1 = 2 ranks on dev, CPU\n"
            "command    python -u train.py HF_TOKEN=***\n"
            "folder     /home/u\n"
            "time       submitted 2 min 5 s ago\n"
            "checkpoint ckpt/step_20.pt (step 20)\n"
            "why        attempt 0: rank 1 on node2 was killed by SIGKILL\n"
            "nodes\n"
            "  node1      up      rank 0 running (pid 100)\n"
            "  node2      up      rank 1 running (pid 101)\n"
            "logs       node1:/logs/3f2a1c-1/attempt_1\n"
            "logs       node2:/logs/3f2a1c-1/attempt_1\n");
}

TEST(Render, LostOutput) {
  v1::JobStatus job = Job();
  EXPECT_EQ(RenderLost(job.nodes(1), false), "");
  job.mutable_nodes(1)->set_lost_output_bytes(12'345'678);
  job.mutable_nodes(1)->set_lost_output_reason("/logs/rank_1.out: No space left on device");
  const std::string end = "12.3 MB of output could not be written: /logs/rank_1.out: No space left on device";
  EXPECT_EQ(RenderLost(job.nodes(1), true), "node2: " + end);
  EXPECT_EQ(RenderLost(job.nodes(1), false),
            "node2: more than " + end +
                "; the ranks run on, and what follows is written once there is room there again");
  EXPECT_THAT(RenderStatus(job, absl::Now()), HasSubstr("\nlost       node2: more than 12.3 MB"));
  EXPECT_THAT(RenderWhy(job, absl::Now()), HasSubstr("\nlost       node2: more than 12.3 MB"));
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(RenderSummary(job).back(), "node2: " + end);
  const auto json = nlohmann::json::parse(StatusJson(job));
  EXPECT_EQ(json["nodes"][0]["lost_output_bytes"], 0);
  EXPECT_TRUE(json["nodes"][0]["lost_output_reason"].is_null());
  EXPECT_EQ(json["nodes"][1]["lost_output_bytes"], 12'345'678);
  EXPECT_EQ(json["nodes"][1]["lost_output_reason"], "/logs/rank_1.out: No space left on device");
}

TEST(Render, HumanBytes) {
  EXPECT_EQ(HumanBytes(1), "1 byte");
  EXPECT_EQ(HumanBytes(999), "999 bytes");
  EXPECT_EQ(HumanBytes(1000), "1.0 kB");
  EXPECT_EQ(HumanBytes(999'949), "999.9 kB");
  EXPECT_EQ(HumanBytes(999'999), "1.0 MB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "18.4 EB");
}

TEST(Render, Attached) {
  EXPECT_EQ(RenderAttached(Job(), "dev", absl::FromUnixNanos(1065 * kSecond)),
            "2 nodes × 1 = 2 ranks on dev (job 3f2a1c-1), running, attempt 1 for 5.0 s; its last lines:");
}

TEST(Render, Layout) {
  EXPECT_EQ(Layout(2, 8, "dev"), "2 nodes × 8 = 16 ranks on dev");
  EXPECT_EQ(Layout(1, 1, "this machine"), "1 node × 1 = 1 rank on this machine");
}

TEST(Render, WhySentences) {
  v1::Why why;
  why.set_rank(2);
  why.set_node("node1");
  why.set_detail("exited with code 85");
  EXPECT_EQ(WhySentence(why), "rank 2 on node1 exited with code 85");
  why.set_detail("no such file");
  EXPECT_EQ(WhySentence(why), "rank 2 on node1: no such file");
  why.set_rank(-1);
  EXPECT_EQ(WhySentence(why), "node1: no such file");
  why.set_detail("node1 does not answer");
  EXPECT_EQ(WhySentence(why), "node1 does not answer");
  why.set_detail("");
  why.set_node("");
  why.set_cause(v1::CAUSE_STOPPED);
  EXPECT_EQ(WhySentence(why), "stopped");
}

TEST(Render, RestartAndSummary) {
  EXPECT_EQ(RenderRestart(Job().why(), Job()),
            "attempt 0 failed: rank 1 on node2 was killed by SIGKILL; restart 1 of 3 from ckpt/step_20.pt");
  EXPECT_THAT(
      RenderSummary(EndedJob()),
      ElementsAre("job 3f2a1c-1 failed after 1 min 40 s, 2 attempts: rank 1 on node2 was killed by SIGKILL",
                  "  | boom?[31m", "logs: /logs/3f2a1c-1/attempt_1"));
  v1::JobStatus good = EndedJob();
  good.set_state(v1::JOB_STATE_SUCCEEDED);
  good.mutable_nodes(1)->set_log_dir("/other");
  EXPECT_THAT(RenderSummary(good), ElementsAre("job 3f2a1c-1 succeeded after 1 min 40 s, 2 attempts",
                                               "logs: node1:/logs/3f2a1c-1/attempt_1", "logs: node2:/other"));
}

TEST(Render, Why) {
  EXPECT_EQ(RenderWhy(EndedJob(), absl::Now()),
            "job 3f2a1c-1 failed, attempt 1: rank 1 on node2 was killed by SIGKILL\n"
            "cause      signal\n"
            "rank       1\n"
            "node       node2\n"
            "last lines of its stderr:\n"
            "  boom?[31m\n");
  v1::JobStatus recovered = EndedJob();
  recovered.set_state(v1::JOB_STATE_SUCCEEDED);
  recovered.mutable_why()->set_attempt(0);
  EXPECT_THAT(RenderWhy(recovered, absl::Now()),
              HasSubstr("job 3f2a1c-1 succeeded; attempt 0 failed: rank 1 on node2 was killed by SIGKILL\n"));
  EXPECT_THAT(RenderStatus(recovered, absl::FromUnixSeconds(0)),
              HasSubstr("why        attempt 0: rank 1 on node2 was killed by SIGKILL\n"));
  v1::JobStatus fine = Job();
  fine.clear_why();
  EXPECT_EQ(RenderWhy(fine, absl::Now()), "job 3f2a1c-1 running; nothing has failed so far\n");
}

TEST(Render, ProgressAndAlarms) {
  v1::JobStatus job = Job();
  job.set_started_unix_ns(1000 * kSecond);
  v1::Progress* progress = job.mutable_progress();
  progress->set_has_step(true);
  progress->set_from_script(true);
  progress->set_step(130);
  progress->set_steps_per_second(2.5);
  const absl::Time now = absl::FromUnixSeconds(1300);
  EXPECT_EQ(
      RenderProgress(job, now),
      "step 130 (2.5 steps/s); no complete checkpoint: a failure now costs 5 min 0 s of work and a restart "
      "(none yet shows how long one takes)");
  v1::Checkpoint* newest = progress->mutable_newest();
  newest->set_path("ckpt/step_100.pt");
  newest->set_step(100);
  newest->set_mtime_unix_ns(1240 * kSecond);
  EXPECT_EQ(RenderProgress(job, now),
            "step 130 (2.5 steps/s); newest complete checkpoint ckpt/step_100.pt (step 100), 1 min 0 s old, "
            "30 steps ago; a failure now costs 30 steps (12.0 s of work) and a restart (none yet shows how "
            "long one takes)");
  progress->set_restart_s(75);
  EXPECT_THAT(RenderProgress(job, now), HasSubstr("(12.0 s of work) and a restart of 1 min 15 s, as usual"));
  progress->set_steps_per_second(0);  // not known yet: by the clock
  EXPECT_THAT(RenderProgress(job, now), HasSubstr("costs 30 steps (1 min 0 s of work)"));
  progress->set_has_step(false);
  EXPECT_THAT(RenderProgress(job, now), HasSubstr("costs 1 min 0 s of work and"));
  progress->set_has_step(true);
  newest->set_step(-1);
  newest->set_mtime_unix_ns(10 * kSecond);  // of an earlier attempt: no more is lost than this one has run
  EXPECT_THAT(RenderProgress(job, now), HasSubstr("a failure now costs 5 min 0 s of work"));
  newest->set_step(100);
  job.set_state(v1::JOB_STATE_FAILED);
  EXPECT_THAT(RenderProgress(job, now), Not(HasSubstr("a failure now")));

  v1::Alarm* alarm = job.add_alarms();
  alarm->set_kind(v1::ALARM_KIND_CHECKPOINT_BAD);
  alarm->set_text("checkpoint x is passed over\n\x1b[31m");
  alarm->set_attempt(1);
  alarm->set_node("node2");
  EXPECT_EQ(RenderAlarm(*alarm), "node2: checkpoint x is passed over??[31m");
  const std::string row = "alarm      attempt 1: node2: checkpoint x is passed over";
  EXPECT_THAT(RenderStatus(job, now), HasSubstr(row));
  EXPECT_THAT(RenderWhy(job, now), HasSubstr(row));
  const auto json = nlohmann::json::parse(StatusJson(job));
  EXPECT_EQ(json["progress"]["step"], 130);
  EXPECT_EQ(json["progress"]["newest_checkpoint_step"], 100);
  EXPECT_TRUE(json["progress"]["free_bytes"].is_null());
  EXPECT_EQ(json["progress"]["restart_s"], 75);
  EXPECT_EQ(json["alarms"][0]["kind"], "checkpoint_bad");
  EXPECT_EQ(json["alarms"][0]["node"], "node2");
  EXPECT_TRUE(nlohmann::json::parse(StatusJson(Job()))["progress"].is_null());
}

TEST(Render, StatusJsonHasTheDocumentedNames) {
  const auto json = nlohmann::json::parse(StatusJson(Job()));
  EXPECT_EQ(json["job"], "3f2a1c-1");
  EXPECT_EQ(json["name"], "bert");
  EXPECT_EQ(json["state"], "running");
  EXPECT_EQ(json["attempt"], 1);
  EXPECT_EQ(json["restarts"], 1);
  EXPECT_EQ(json["nodes"][1]["name"], "node2");
  EXPECT_EQ(json["nodes"][1]["state"], "up");
  const auto& rank = json["nodes"][1]["ranks"][0];
  EXPECT_EQ(rank["rank"], 1);
  EXPECT_EQ(rank["local_rank"], 0);
  EXPECT_EQ(rank["pid"], 101);
  EXPECT_EQ(rank["state"], "running");
  EXPECT_TRUE(rank["exit"].is_null());
  EXPECT_EQ(json["why"]["cause"], "signal");
  EXPECT_EQ(json["why"]["rank"], 1);
  EXPECT_EQ(json["why"]["node"], "node2");
  EXPECT_EQ(json["why"]["detail"], "killed by SIGKILL");
  EXPECT_EQ(json["why"]["stderr_tail"].size(), 1u);
  EXPECT_EQ(json["why"]["signal"], 9);
  EXPECT_EQ(json["checkpoint"], "ckpt/step_20.pt");
  EXPECT_TRUE(json["exit_code"].is_null());
  EXPECT_EQ(json["submitted"], "1970-01-01T00:16:40.000Z");
  EXPECT_THAT(StatusJson(Job()), Not(HasSubstr("abc\"")));
}

TEST(Render, JsonTakesAnyBytes) {
  v1::JobStatus job = EndedJob();
  job.mutable_why()->set_detail("code");
  job.set_cwd("/\xff\xfe");
  const auto json = nlohmann::json::parse(StatusJson(job));
  EXPECT_EQ(json["exit_code"], 137);
  job.clear_why();
  job.clear_checkpoint();
  EXPECT_TRUE(nlohmann::json::parse(StatusJson(job))["why"].is_null());
  EXPECT_TRUE(nlohmann::json::parse(StatusJson(job))["checkpoint"].is_null());
}

TEST(Render, StateNames) {
  EXPECT_EQ(StateName(v1::JOB_STATE_QUEUED), "queued");
  EXPECT_EQ(StateName(v1::NODE_STATE_LOST), "lost");
  EXPECT_EQ(StateName(v1::RANK_STATE_EXITED), "exited");
  EXPECT_EQ(CauseName(v1::CAUSE_LAUNCH_REFUSED), "launch_refused");
  EXPECT_EQ(StateName(static_cast<v1::JobState>(99)), "unknown") << "a newer controller's state";
}

TEST(Render, Nodes) {
  v1::NodeInfo node;
  node.set_name("node1");
  node.set_state(v1::NODE_STATE_UP);
  node.mutable_inventory()->set_allowed_cores(2);
  node.mutable_inventory()->set_gpu_error("no driver");
  node.add_jobs("3f2a1c-1");
  EXPECT_EQ(RenderNodes({node}),
            "NODE         STATE    GPUS      CORES  JOBS             ADDRESS\n"
            "node1        up       0/0           2  3f2a1c-1         -\n"
            "  node1: no driver\n");
  const auto json = nlohmann::json::parse(NodesJson({node}));
  EXPECT_EQ(json[0]["state"], "up");
  EXPECT_EQ(json[0]["jobs"][0], "3f2a1c-1");
}

TEST(Render, JobList) {
  const std::string text = RenderJobList({Job()}, absl::FromUnixSeconds(1010));
  EXPECT_THAT(text, HasSubstr("3f2a1c-1       bert             running"));
  EXPECT_EQ(RenderJobList({}, absl::FromUnixSeconds(0)), "no jobs\n");
}

}  // namespace
}  // namespace dgxrun::cli
