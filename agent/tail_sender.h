// A TailSink that is one Output RPC on the bulk channel.
#ifndef DGXRUN_AGENT_TAIL_SENDER_H_
#define DGXRUN_AGENT_TAIL_SENDER_H_

#include <memory>

#include "agent/tail.h"
#include "grpcpp/channel.h"

namespace dgxrun::agent {

std::unique_ptr<TailSink> MakeOutputSink(std::shared_ptr<grpc::Channel> bulk,
                                         std::shared_ptr<LoopInbox> loop);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_TAIL_SENDER_H_
