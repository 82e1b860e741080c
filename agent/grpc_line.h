// A ControllerLine over gRPC: Connect on the control channel, Output on the bulk channel.
#ifndef DGXRUN_AGENT_GRPC_LINE_H_
#define DGXRUN_AGENT_GRPC_LINE_H_

#include <memory>

#include "agent/controller_line.h"
#include "grpcpp/channel.h"

namespace dgxrun::agent {

std::shared_ptr<ControllerLine> MakeGrpcLine(std::shared_ptr<grpc::Channel> control,
                                             std::shared_ptr<grpc::Channel> bulk);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_GRPC_LINE_H_
