// absl::Status over the wire and back: gRPC's codes are the same numbers.
#ifndef DGXRUN_PROTO_RPC_STATUS_H_
#define DGXRUN_PROTO_RPC_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace dgxrun {

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace dgxrun

#endif  // DGXRUN_PROTO_RPC_STATUS_H_
