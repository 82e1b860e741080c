#include "controller/core/alarms.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controller/core/progress.h"

namespace dgxrun::core {
namespace {

std::string Minutes(absl::Duration duration) {
  const double minutes = absl::ToDoubleMinutes(duration);
  return minutes < 1.5 ? absl::StrFormat("%.0f s", absl::ToDoubleSeconds(duration))
                       : absl::StrFormat("%.0f min", minutes);
}

std::string Gigabytes(uint64_t bytes) {
  return bytes < 1'000'000'000 ? absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6)
                               : absl::StrFormat("%.1f GB", static_cast<double>(bytes) / 1e9);
}

void CheckReset(Draft* draft, const Job& job, const AttemptProgress& progress) {
  const std::optional<v1::Checkpoint>& given = job.attempt->checkpoint;
  const v1::Progress& summary = progress.summary;
  if (!given || given->step() <= 0 || !summary.has_step()) return;
  if (static_cast<double>(summary.first_step()) >= kResetBelow * static_cast<double>(given->step())) return;
  if (HasAlarm(job, job.attempt->number, v1::ALARM_KIND_SILENT_RESET)) return;
  const JobId id = job.id;
  // Only the script's own word is good enough to end it: a checkpoint's number may be an epoch's.
  const bool stop = job.spec.ckpt().stop_on_reset() && summary.from_script() && !job.stop;
  const std::string text =
      absl::StrCat("silent reset: the attempt was given ", given->path(), " (step ", given->step(), "), but ",
                   summary.from_script() ? "its first step is " : "its first new checkpoint is of step ",
                   summary.first_step(),
                   stop ? "; the job is stopped (--on-reset stop)"
                        : "; does the script load DGXRUN_RESUME_FROM, or what --resume-arg gives it?");
  RaiseAlarm(draft, id, v1::ALARM_KIND_SILENT_RESET, text);
  if (!stop) return;
  v1::Record record;
  v1::StopRequested* wish = record.mutable_stop_requested();
  wish->set_job_id(id.str());
  wish->set_user("dgxrun");
  wish->set_reason(absl::StrCat("silent reset to step ", summary.first_step()));
  draft->Add(std::move(record));
}

void CheckSilence(Draft* draft, const Job& job, const AttemptProgress& progress) {
  const absl::Duration usual = absl::Seconds(progress.summary.save_interval_s());
  if (usual <= absl::ZeroDuration() || progress.newest_at == absl::InfinitePast()) return;
  const absl::Duration since = draft->now() - progress.newest_at;
  if (since < std::max(kIntervalsWithout * usual, kMinSilence)) return;
  if (HasAlarm(job, job.attempt->number, v1::ALARM_KIND_NO_CHECKPOINT)) return;
  RaiseAlarm(draft, job.id, v1::ALARM_KIND_NO_CHECKPOINT,
             absl::StrCat("no new complete checkpoint for ", Minutes(since), "; usually there is one every ",
                          Minutes(usual), "; the newest is ", progress.summary.newest().path()));
}

void CheckDisk(Draft* draft, const Job& job, const AttemptProgress& progress) {
  const v1::Progress& summary = progress.summary;
  if (!summary.has_newest() || progress.short_since == absl::InfiniteFuture()) return;
  if (job.spec.ckpt().keep_last() > 0 && draft->now() - progress.short_since < kTidyTime) return;
  if (HasAlarm(job, job.attempt->number, v1::ALARM_KIND_DISK_FORETOLD)) return;
  std::string when;
  if (summary.save_interval_s() > 0) {
    const absl::Duration left = progress.newest_at + absl::Seconds(summary.save_interval_s()) - draft->now();
    when = absl::StrCat(" in about ", Minutes(std::max(left, absl::ZeroDuration())));
  }
  RaiseAlarm(draft, job.id, v1::ALARM_KIND_DISK_FORETOLD,
             absl::StrCat(job.spec.ckpt_dir(), " has ", Gigabytes(summary.free_bytes()),
                          " left and a checkpoint takes ", Gigabytes(summary.newest().bytes()),
                          ": the next save", when, " will not fit; dgxrun ckpt prune, or --ckpt-keep"));
}

void CheckNotes(Draft* draft, const JobId& id, const AttemptProgress& progress) {
  for (const auto& [node, note] : progress.notes) {
    const Job* job = FindJobById(draft->state(), id);
    const AttemptNode* share = FindShare(*job->attempt, node);
    const std::string name = share != nullptr ? share->name : "";
    if (absl::StartsWith(note, "TMPDIR ")) {
      if (HasAlarm(*job, job->attempt->number, v1::ALARM_KIND_TMPDIR)) continue;
      RaiseAlarm(draft, id, v1::ALARM_KIND_TMPDIR, note, name);
    } else if (absl::StartsWith(note, "--ckpt-keep: ")) {  // it could not
      RaiseAlarm(draft, id, v1::ALARM_KIND_CHECKPOINT_BAD, note, name);
    }
  }
}

// The script goes on: a restart is done, and has taken so long.
void NoteRestart(Draft* draft, const Job& job, const AttemptProgress& progress) {
  if (job.failed_at == absl::InfinitePast() || !progress.summary.from_script()) return;
  v1::Record record;
  record.mutable_restart_done()->set_job_id(job.id.str());
  record.mutable_restart_done()->set_attempt(job.attempt->number.value());
  draft->Add(std::move(record));
}

}  // namespace

bool HasAlarm(const Job& job, AttemptNo attempt, v1::AlarmKind kind) {
  // What was dropped because there were too many counts as said.
  if (job.alarms.size() >= kMaxAlarms) return true;
  return std::any_of(job.alarms.begin(), job.alarms.end(), [&](const v1::Alarm& alarm) {
    return alarm.kind() == kind && alarm.attempt() == attempt.value();
  });
}

void RaiseAlarm(Draft* draft, const JobId& id, v1::AlarmKind kind, const std::string& text,
                const std::string& node) {
  const Job* job = FindJobById(draft->state(), id);
  if (job == nullptr || job->alarms.size() >= kMaxAlarms) return;
  for (const v1::Alarm& alarm : job->alarms) {
    if (alarm.kind() == kind && alarm.text() == text) return;
  }
  v1::Record record;
  record.mutable_alarm_raised()->set_job_id(id.str());
  v1::Alarm* alarm = record.mutable_alarm_raised()->mutable_alarm();
  alarm->set_kind(kind);
  alarm->set_text(text);
  alarm->set_at_unix_ns(absl::ToUnixNanos(draft->now()));
  if (job->attempt) alarm->set_attempt(job->attempt->number.value());
  alarm->set_node(node);
  draft->Add(std::move(record));
}

void DecideProgress(Draft* draft, const JobId& id) {
  // Each may add records, and so move the state: looked up anew.
  const auto running = [&]() -> const Job* {
    const Job* job = FindJobById(draft->state(), id);
    const Attempt* attempt = job != nullptr ? LiveAttempt(*job) : nullptr;
    return attempt != nullptr && attempt->phase == Attempt::Phase::kRunning ? job : nullptr;
  };
  const Job* job = running();
  const AttemptProgress* progress = job != nullptr ? ProgressOf(draft->contacts(), *job) : nullptr;
  if (progress == nullptr) return;
  NoteRestart(draft, *job, *progress);
  if ((job = running()) != nullptr) CheckReset(draft, *job, *progress);
  if ((job = running()) != nullptr) CheckSilence(draft, *job, *progress);
  if ((job = running()) != nullptr) CheckDisk(draft, *job, *progress);
  if (running() != nullptr) CheckNotes(draft, id, *progress);
}

void DecideSuccess(Draft* draft, const JobId& id) {
  const Job& job = *FindJobById(draft->state(), id);
  const AttemptProgress* progress = ProgressOf(draft->contacts(), job);
  const bool knows = progress != nullptr && progress->summary.has_step();
  const uint64_t last = job.spec.ckpt().last_step();
  if (last > 0 && knows) {
    const auto step = static_cast<double>(progress->summary.step());
    // The last checkpoint may have been written a moment ago; the script's own word is never that late.
    const double from = progress->summary.from_script() ? kDoneFrom : kDoneFrom / 2;
    if (step < from * static_cast<double>(last)) {
      return RaiseAlarm(draft, id, v1::ALARM_KIND_SUSPICIOUS_SUCCESS,
                        absl::StrCat("suspicious success: all ranks exited with 0 at step ",
                                     progress->summary.step(), ", training ends at step ", last));
    }
  }
  if (!knows && HasAlarm(job, job.attempt->number, v1::ALARM_KIND_CHECKPOINT_BAD)) {
    RaiseAlarm(draft, id, v1::ALARM_KIND_SUSPICIOUS_SUCCESS,
               "suspicious success: a checkpoint or pointer was bad, and all ranks exited with 0 before any "
               "step or checkpoint was seen");
  }
}

}  // namespace dgxrun::core
