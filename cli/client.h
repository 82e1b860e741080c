// A connection to a controller, with the limits and error texts that a person at a terminal needs: over gRPC,
// or to the controller in this process, where of the calls only those of an attached client work (Submit,
// StopLater, StartWatch, StartLogs).
//
// Errors: Unavailable or DeadlineExceeded name the cluster and its address; others are the controller's
// own line. Unary calls end within kAnswerLimit. Every call says the version of the wire (metadata).
#ifndef DGXRUN_CLI_CLIENT_H_
#define DGXRUN_CLI_CLIENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/stream_reader.h"
#include "controller/in_process.h"
#include "dgxrun/v1/control.grpc.pb.h"
#include "dgxrun/v1/control.pb.h"
#include "grpcpp/channel.h"
#include "launcher/base/cluster_file.h"

namespace dgxrun::cli {

// A controller that is there answers within milliseconds; packets that a firewall drops never do.
inline constexpr absl::Duration kAnswerLimit = absl::Seconds(5);
// A submit carries up to some MiB and waits for a disk.
inline constexpr absl::Duration kSubmitLimit = absl::Seconds(30);

class Client {
 public:
  static absl::StatusOr<Client> Connect(const ClusterFile& cluster);
  static absl::StatusOr<Client> ConnectLocal(const std::string& socket_path);
  Client(std::shared_ptr<grpc::Channel> channel, std::string where);
  Client(InProcess* controller, std::string where) : here_(controller), where_(std::move(where)) {}

  absl::StatusOr<v1::ControllerInfo> Info();
  // The same key never makes a second job, so a lost answer is asked for again.
  absl::StatusOr<v1::SubmitReply> Submit(const v1::SubmitRequest& request);
  absl::StatusOr<v1::JobStatus> Status(const std::string& job);
  absl::StatusOr<std::vector<v1::JobStatus>> Jobs(uint32_t limit);
  absl::StatusOr<std::vector<v1::NodeInfo>> Nodes();
  absl::StatusOr<v1::JobStatus> Stop(const v1::StopRequest& request);
  absl::StatusOr<v1::NodeInfo> FenceNode(const v1::FenceNodeRequest& request);
  // `done` is called on another thread.
  void StopLater(const v1::StopRequest& request, std::function<void(const grpc::Status&)> done);
  // The reader's `done` is called once, whatever happens.
  void StartWatch(const v1::WatchRequest& request, StreamReader<v1::JobStatus>* reader);
  void StartLogs(const v1::LogsRequest& request, StreamReader<v1::OutputChunk>* reader);
  // The status when the job has ended. DeadlineExceeded after `limit`.
  absl::StatusOr<v1::JobStatus> WaitEnded(const std::string& job, absl::Duration limit);

  // The error of a call in words.
  absl::Status Explain(const grpc::Status& status) const;

  v1::Control::Stub* stub() { return stub_.get(); }
  const std::string& where() const { return where_; }

 private:
  absl::StatusOr<v1::SubmitReply> SubmitHere(const v1::SubmitRequest& request);

  InProcess* here_ = nullptr;  // null: over channel_
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Control::Stub> stub_;
  std::string where_;  // "cluster dev (unix:/...)"
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_CLIENT_H_
