#include "tests/contract/old_wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dgxrun {
namespace {

namespace pb = google::protobuf;

class FileWire final : public OldWire {
 public:
  FileWire(uint32_t say_major, uint32_t say_minor) : say_major_(say_major), say_minor_(say_minor) {}

  absl::Status Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    pb::FileDescriptorSet set;
    if (!in || !set.ParseFromIstream(&in)) return absl::InvalidArgumentError(path + ": no descriptors");
    // A file stands after those that it imports.
    for (const pb::FileDescriptorProto& file : set.file()) {
      if (pool_.BuildFile(file) == nullptr) return absl::InvalidArgumentError(path + ": bad " + file.name());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Request(const std::string& method, const std::string& bytes) override {
    const pb::MethodDescriptor* found = Find(method);
    if (found == nullptr) return absl::NotFoundError(method);
    return Convert(found->input_type(), bytes);
  }
  absl::StatusOr<std::string> Reply(const std::string& method, const std::string& bytes) override {
    const pb::MethodDescriptor* found = Find(method);
    if (found == nullptr) return absl::NotFoundError(method);
    return Convert(found->output_type(), bytes);
  }

 private:
  const pb::MethodDescriptor* Find(std::string method) const {
    // "/package.Service/Method" -> "package.Service.Method"
    if (method.empty() || method[0] != '/') return nullptr;
    method.erase(0, 1);
    std::replace(method.begin(), method.end(), '/', '.');
    return pool_.FindMethodByName(method);
  }

  absl::StatusOr<std::string> Convert(const pb::Descriptor* type, const std::string& bytes) {
    const std::unique_ptr<pb::Message> message(factory_.GetPrototype(type)->New());
    if (!message->ParseFromString(bytes))
      return absl::InvalidArgumentError(absl::StrCat("no ", type->full_name()));
    message->DiscardUnknownFields();
    SayVersion(message.get());
    return message->SerializeAsString();
  }

  // Wherever a WireVersion is set, however deep.
  void SayVersion(pb::Message* message) const {
    const pb::Reflection* reflection = message->GetReflection();
    if (message->GetDescriptor()->full_name() == "dgxrun.v1.WireVersion") {
      reflection->SetUInt32(message, message->GetDescriptor()->FindFieldByName("major"), say_major_);
      reflection->SetUInt32(message, message->GetDescriptor()->FindFieldByName("minor"), say_minor_);
      return;
    }
    std::vector<const pb::FieldDescriptor*> fields;
    reflection->ListFields(*message, &fields);
    for (const pb::FieldDescriptor* field : fields) {
      if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) continue;
      if (!field->is_repeated()) {
        SayVersion(reflection->MutableMessage(message, field));
        continue;
      }
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        SayVersion(reflection->MutableRepeatedMessage(message, field, i));
      }
    }
  }

  pb::DescriptorPool pool_;
  pb::DynamicMessageFactory factory_;  // its GetPrototype may be called from several threads
  const uint32_t say_major_, say_minor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OldWire>> OldWire::Load(const std::string& descriptors, uint32_t say_major,
                                                       uint32_t say_minor) {
  auto wire = std::make_unique<FileWire>(say_major, say_minor);
  absl::Status read = wire->Read(descriptors);
  if (!read.ok()) return read;
  return wire;
}

}  // namespace dgxrun
