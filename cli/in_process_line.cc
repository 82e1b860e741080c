#include "cli/in_process_line.h"

#include <utility>

namespace dgxrun::cli {
namespace {

class Stream final : public agent::ControlStream {
 public:
  explicit Stream(std::unique_ptr<InProcess::Node> node) : node_(std::move(node)) {}
  void Send(v1::AgentMsg message) override { node_->Send(message); }

 private:
  const std::unique_ptr<InProcess::Node> node_;
};

class Sink final : public agent::TailSink {
 public:
  Sink(std::unique_ptr<InProcess::Output> output, std::shared_ptr<agent::LoopInbox> loop)
      : output_(std::move(output)), loop_(std::move(loop)) {}
  void Write(v1::OutputChunk chunk, std::function<void(bool ok)> done) override {
    output_->Write(std::move(chunk),
                   [loop = loop_, done = std::move(done)](bool ok) { loop->Post([done, ok] { done(ok); }); });
  }
  void Finish() override { output_->Finish(); }

 private:
  const std::unique_ptr<InProcess::Output> output_;
  const std::shared_ptr<agent::LoopInbox> loop_;
};

class Line final : public agent::ControllerLine {
 public:
  explicit Line(InProcess* controller) : controller_(controller) {}
  std::unique_ptr<agent::ControlStream> Connect(agent::StreamEvents events) override {
    return std::make_unique<Stream>(
        controller_->ConnectNode(std::move(events.message), std::move(events.closed)));
  }
  std::unique_ptr<agent::TailSink> OpenOutput(std::shared_ptr<agent::LoopInbox> loop) override {
    return std::make_unique<Sink>(controller_->OpenOutput(), std::move(loop));
  }

 private:
  InProcess* const controller_;
};

}  // namespace

std::shared_ptr<agent::ControllerLine> MakeInProcessLine(InProcess* controller) {
  return std::make_shared<Line>(controller);
}

}  // namespace dgxrun::cli
