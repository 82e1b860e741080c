#include "tests/contract/wire_log.h"

#include <errno.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <string.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "dgxrun/v1/control.pb.h"

namespace dgxrun {
namespace {

namespace pb = google::protobuf;

std::string Kind(const pb::Message& message) {
  const pb::OneofDescriptor* body = message.GetDescriptor()->FindOneofByName("body");
  if (body == nullptr) return "-";
  const pb::Reflection* reflection = message.GetReflection();
  const pb::FieldDescriptor* field = reflection->GetOneofFieldDescriptor(message, body);
  if (field == nullptr) return "-";
  if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) return field->name();
  const std::string inner = Kind(reflection->GetMessage(message, field));
  return inner == "-" ? std::string(field->name()) : absl::StrCat(std::string(field->name()), ".", inner);
}

std::string KindOf(std::string method, bool request, const std::string& bytes) {
  // A static library gives what is named: both files must be in the program for their services to be known.
  const pb::FileDescriptor* files[] = {v1::AgentMsg::descriptor()->file(),
                                       v1::SubmitRequest::descriptor()->file()};
  std::replace(method.begin(), method.end(), '/', '.');
  const pb::MethodDescriptor* found = nullptr;
  for (const pb::FileDescriptor* file : files) {
    if (found == nullptr) found = file->pool()->FindMethodByName(method.substr(1));
  }
  if (found == nullptr) return "?";
  const pb::Descriptor* type = request ? found->input_type() : found->output_type();
  const std::unique_ptr<pb::Message> message(
      pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
  return message->ParseFromString(bytes) ? Kind(*message) : "?";
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireLog>> WireLog::Open(const std::string& path) {
  FILE* file = fopen(path.c_str(), "a");
  if (file == nullptr) return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
  return std::unique_ptr<WireLog>(new WireLog(file));
}

void WireLog::Note(const std::string& method, bool request, const std::string& bytes) {
  const std::string kind = KindOf(method, request, bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  fprintf(file_, "%s %s %s %zu\n", method.c_str(), request ? "request" : "reply", kind.c_str(), bytes.size());
  fflush(file_);
}

}  // namespace dgxrun
