#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/launch_command.h"
#include "cli/render.h"

namespace dgxrun::cli {
namespace {

using Json = nlohmann::ordered_json;

// Text that is not UTF-8 (a rank may write anything) gets replacement characters; dump would throw.
std::string Dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

Json TimeOrNull(int64_t unix_ns) {
  if (unix_ns == 0) return nullptr;
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(unix_ns), absl::UTCTimeZone());
}

Json RankJson(const v1::RankStatus& rank) {
  Json json;
  json["rank"] = rank.rank();
  json["local_rank"] = rank.local_rank();
  json["pid"] = rank.pid() > 0 ? Json(rank.pid()) : Json(nullptr);
  if (rank.inner_pid() > 0) json["inner_pid"] = rank.inner_pid();
  json["state"] = StateName(rank.state());
  const bool exited = rank.state() == v1::RANK_STATE_EXITED;
  json["exit"] = exited ? Json(rank.exit().code()) : Json(nullptr);
  json["signal"] = exited && rank.exit().signal() != 0 ? Json(rank.exit().signal()) : Json(nullptr);
  return json;
}

Json NodeJson(const v1::JobNodeStatus& node) {
  Json json;
  json["name"] = node.name();
  json["state"] = StateName(node.state());
  json["log_dir"] = node.log_dir();
  json["lost_output_bytes"] = node.lost_output_bytes();
  json["lost_output_reason"] =
      node.lost_output_reason().empty() ? Json(nullptr) : Json(node.lost_output_reason());
  json["ranks"] = Json::array();
  for (const v1::RankStatus& rank : node.ranks()) json["ranks"].push_back(RankJson(rank));
  return json;
}

Json WhyObject(const v1::JobStatus& status) {
  if (!status.has_why()) return nullptr;
  const v1::Why& why = status.why();
  Json json;
  json["cause"] = CauseName(why.cause());
  json["rank"] = why.rank() >= 0 ? Json(why.rank()) : Json(nullptr);
  json["node"] = why.node().empty() ? Json(nullptr) : Json(why.node());
  json["detail"] = why.detail();
  json["stderr_tail"] = Json::array();
  for (const std::string& line : why.stderr_tail()) json["stderr_tail"].push_back(line);
  json["attempt"] = why.attempt();
  json["exit"] = why.has_exit() ? Json(why.exit().code()) : Json(nullptr);
  json["signal"] = why.has_exit() && why.exit().signal() != 0 ? Json(why.exit().signal()) : Json(nullptr);
  return json;
}

Json ProgressObject(const v1::Progress& progress) {
  Json json;
  json["step"] = progress.has_step() ? Json(progress.step()) : Json(nullptr);
  json["first_step"] = progress.has_step() ? Json(progress.first_step()) : Json(nullptr);
  json["from_script"] = progress.from_script();
  json["steps_per_second"] =
      progress.steps_per_second() > 0 ? Json(progress.steps_per_second()) : Json(nullptr);
  const v1::Checkpoint& newest = progress.newest();
  json["newest_checkpoint"] = progress.has_newest() ? Json(newest.path()) : Json(nullptr);
  json["newest_checkpoint_step"] =
      progress.has_newest() && newest.step() >= 0 ? Json(newest.step()) : Json(nullptr);
  json["newest_checkpoint_time"] = TimeOrNull(progress.has_newest() ? newest.mtime_unix_ns() : 0);
  json["checkpoints_written"] = progress.complete();
  json["save_interval_s"] = progress.save_interval_s() > 0 ? Json(progress.save_interval_s()) : Json(nullptr);
  json["free_bytes"] = progress.free_bytes() > 0 ? Json(progress.free_bytes()) : Json(nullptr);
  json["restart_s"] = progress.restart_s() > 0 ? Json(progress.restart_s()) : Json(nullptr);
  return json;
}

Json AlarmList(const v1::JobStatus& status) {
  Json list = Json::array();
  for (const v1::Alarm& alarm : status.alarms()) {
    Json json;
    json["kind"] = AlarmName(alarm.kind());
    json["text"] = alarm.text();
    json["attempt"] = alarm.attempt();
    json["node"] = alarm.node().empty() ? Json(nullptr) : Json(alarm.node());
    json["at"] = TimeOrNull(alarm.at_unix_ns());
    list.push_back(json);
  }
  return list;
}

Json StatusObject(const v1::JobStatus& status) {
  Json json;
  json["job"] = status.job_id();
  json["name"] = status.name();
  json["owner"] = status.owner().user();
  json["cluster"] = status.cluster();
  json["state"] = StateName(status.state());
  json["attempt"] = status.attempt();
  json["restarts"] = status.restarts();
  json["max_restarts"] = status.max_restarts();
  json["nodes_wanted"] = status.nodes_wanted();
  json["ranks_per_node"] = status.ranks_per_node();
  json["on_cpu"] = status.on_cpu();
  json["nodes"] = Json::array();
  for (const v1::JobNodeStatus& node : status.nodes()) json["nodes"].push_back(NodeJson(node));
  json["why"] = WhyObject(status);
  json["checkpoint"] = status.has_checkpoint() ? Json(status.checkpoint().path()) : Json(nullptr);
  json["checkpoint_step"] = status.has_checkpoint() && status.checkpoint().step() >= 0
                                ? Json(status.checkpoint().step())
                                : Json(nullptr);
  json["progress"] = status.has_progress() ? ProgressObject(status.progress()) : Json(nullptr);
  json["alarms"] = AlarmList(status);
  json["waiting_for"] = status.waiting_for().empty() ? Json(nullptr) : Json(status.waiting_for());
  json["exit_code"] = HasEnded(status.state()) ? Json(status.exit_code()) : Json(nullptr);
  json["submitted"] = TimeOrNull(status.submitted_unix_ns());
  json["started"] = TimeOrNull(status.started_unix_ns());
  json["ended"] = TimeOrNull(status.ended_unix_ns());
  json["argv"] = RedactWords({status.argv().begin(), status.argv().end()});
  json["cwd"] = status.cwd();
  return json;
}

Json GpuJson(const v1::Gpu& gpu) {
  Json json;
  json["index"] = gpu.index();
  json["pci"] = gpu.pci();
  json["uuid"] = gpu.uuid();
  json["model"] = gpu.model();
  json["memory_bytes"] = gpu.memory_bytes();
  return json;
}

}  // namespace

std::string StatusJson(const v1::JobStatus& status) { return Dump(StatusObject(status)); }

std::string JobListJson(const std::vector<v1::JobStatus>& jobs) {
  Json list = Json::array();
  for (const v1::JobStatus& job : jobs) list.push_back(StatusObject(job));
  return Dump(list);
}

std::string WhyJson(const v1::JobStatus& status) {
  Json json;
  json["job"] = status.job_id();
  json["name"] = status.name();
  json["state"] = StateName(status.state());
  json["why"] = WhyObject(status);
  json["progress"] = status.has_progress() ? ProgressObject(status.progress()) : Json(nullptr);
  json["alarms"] = AlarmList(status);
  return Dump(json);
}

std::string NodesJson(const std::vector<v1::NodeInfo>& nodes) {
  Json list = Json::array();
  for (const v1::NodeInfo& node : nodes) {
    Json json;
    json["name"] = node.name();
    json["id"] = node.node_id();
    json["state"] = StateName(node.state());
    json["address"] = node.address().empty() ? Json(nullptr) : Json(node.address());
    json["gpus"] = Json::array();
    for (const v1::Gpu& gpu : node.inventory().gpus()) json["gpus"].push_back(GpuJson(gpu));
    json["gpus_in_use"] = std::vector<uint32_t>(node.gpus_in_use().begin(), node.gpus_in_use().end());
    json["pci_gpus"] = node.inventory().pci_gpus();
    json["gpu_error"] =
        node.inventory().gpu_error().empty() ? Json(nullptr) : Json(node.inventory().gpu_error());
    json["cores"] = node.inventory().allowed_cores();
    json["cgroup"] = node.inventory().cgroup();
    json["jobs"] = std::vector<std::string>(node.jobs().begin(), node.jobs().end());
    json["detail"] = node.detail().empty() ? Json(nullptr) : Json(node.detail());
    json["agent_version"] = node.agent_version();
    json["last_heard"] = TimeOrNull(node.last_heard_unix_ns());
    list.push_back(json);
  }
  return Dump(list);
}

}  // namespace dgxrun::cli
