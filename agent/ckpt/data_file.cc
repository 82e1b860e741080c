#include "agent/ckpt/data_file.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "agent/ckpt/little_endian.h"
#include "agent/ckpt/safetensors.h"
#include "agent/ckpt/text.h"
#include "agent/utf8.h"

namespace dgxrun::agent::ckpt {
namespace {

constexpr std::string_view kZipMagic("PK\3\4", 4);
// PROTO 2 and LONG1 of ten bytes: the magic number with which torch.save began until 1.6.
constexpr std::string_view kLegacyMagic("\x80\x02\x8a\x0a", 4);
constexpr char kPickleMagic = '\x80';
// Directories of zip files up to this are read when only structure is judged: 100,000 tensors.
constexpr uint64_t kStructureDirectoryBytes = uint64_t{16} << 20;
// Files that are one pickle and nothing else hold states of random generators and samplers.
constexpr uint64_t kMaxBarePickle = uint64_t{64} << 20;
constexpr size_t kHeadBytes = 16;

void JudgeZip(Review& review, std::string_view name, DataFile& data) {
  absl::StatusOr<ZipArchive> archive = FindZip(*data.file, data.file->info().bytes);
  absl::Status status = archive.status();
  if (status.ok() && archive->begin != 0)
    status = absl::DataLossError("damaged zip archive: bytes before its begin");
  const bool read_directory =
      status.ok() && (review.options().deep || archive->directory_bytes <= kStructureDirectoryBytes);
  if (read_directory) {
    absl::StatusOr<std::vector<ZipMember>> members = ReadZipDirectory(*data.file, *archive);
    status = members.status();
    if (status.ok()) data.members = *std::move(members);
    if (status.ok() && review.options().deep) status = CheckZipCrcs(*data.file, *archive, data.members);
  }
  if (!status.ok()) {
    review.FaultOf(status, name);
    return;
  }
  data.archive = *archive;
  data.kind = DataKind::kZip;
}

void JudgePickle(Review& review, std::string_view name, DataFile& data) {
  const uint64_t size = data.file->info().bytes;
  if (size > kMaxBarePickle) {
    review.Fault(v1::VERDICT_UNVERIFIED, name, "a pickle that is larger than is read");
    return;
  }
  std::string bytes(size, '\0');
  absl::Status status = data.file->ReadAt(0, bytes.data(), bytes.size());
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<Pickle>> pickle = Pickle::Parse(bytes);
    status = pickle.status();
    if (status.ok() && (*pickle)->bytes_used() != bytes.size()) {
      status = absl::UnimplementedError("a pickle with other data after it");
    }
  }
  if (status.ok()) {
    data.kind = DataKind::kPickle;
  } else {
    review.FaultOf(status, name);
  }
}

// By its first bytes, for a file that is no zip.
void JudgeOther(Review& review, std::string_view name, std::string_view head, DataFile& data) {
  if (head.starts_with(kLegacyMagic)) {
    data.kind = DataKind::kLegacy;
    review.Fault(v1::VERDICT_UNVERIFIED, name,
                 "torch.save's old format has no end mark: whether it is complete cannot be told");
  } else if (!head.empty() && head[0] == kPickleMagic) {
    JudgePickle(review, name, data);
  } else if (head.find_first_not_of('\0') == std::string_view::npos && head.size() >= 4) {
    review.Fault(v1::VERDICT_CORRUPT, name, "begins with zeros: its data never reached the disk");
  } else {
    data.kind = DataKind::kUnknown;
    review.Fault(v1::VERDICT_UNVERIFIED, name, "not a format that is known");
  }
}

std::string Places(const std::vector<ZeroRun>& runs) {
  return Cat({ToPrintable(runs[0].tensor), " holds ", Str(runs[0].bytes), " bytes of zeros at byte ",
              Str(runs[0].begin), ": a hole, unless the model is pruned"});
}

}  // namespace

DataFile CheckSafetensors(Review& review, std::string_view name) {
  DataFile data;
  data.file = review.Open(name);
  if (data.file == nullptr) return data;
  absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(*data.file);
  if (!header.ok()) {
    review.FaultOf(header.status(), name);
    return data;
  }
  const uint64_t size = data.file->info().bytes;
  if (size < header->end) {
    review.Fault(v1::VERDICT_PARTIAL, name,
                 Cat({"cut off: ", Str(size), " of ", Str(header->end), " bytes"}));
    return data;
  }
  if (size > header->end) {
    review.Fault(v1::VERDICT_CORRUPT, name, Cat({Str(size - header->end), " bytes after its last tensor"}));
    return data;
  }
  if (review.options().deep) {
    absl::StatusOr<std::vector<ZeroRun>> runs = FindZeroRuns(*data.file, *header, 1);
    if (!runs.ok()) review.FaultOf(runs.status(), name);
    if (runs.ok() && !runs->empty()) review.Fault(v1::VERDICT_UNVERIFIED, name, Places(*runs));
  }
  data.kind = DataKind::kSafetensors;
  for (const SafeTensor& tensor : header->tensors) data.tensors.insert(tensor.name);
  return data;
}

DataFile CheckDataFile(Review& review, std::string_view name) {
  const std::string_view shown = name.empty() ? review.name() : name;
  if (shown.ends_with(".safetensors")) return CheckSafetensors(review, name);
  DataFile data;
  data.file = review.Open(name);
  if (data.file == nullptr) return data;
  const uint64_t size = data.file->info().bytes;
  if (size == 0) {
    review.Fault(v1::VERDICT_PARTIAL, name, "empty");
    return data;
  }
  char head[kHeadBytes];
  const size_t head_size = std::min<uint64_t>(size, kHeadBytes);
  if (absl::Status read = data.file->ReadAt(0, head, head_size); !read.ok()) {
    review.FaultOf(read, name);
    return data;
  }
  const std::string_view begin(head, head_size);
  if (begin.size() < kZipMagic.size() && kZipMagic.starts_with(begin)) {
    review.Fault(v1::VERDICT_PARTIAL, name, "cut off after its first bytes");
  } else if (begin.starts_with(kZipMagic)) {
    JudgeZip(review, name, data);
  } else {
    JudgeOther(review, name, begin, data);
  }
  return data;
}

std::optional<LoadedPickle> ReadDataPickle(DataFile& data, uint64_t max_bytes) {
  if (data.kind != DataKind::kZip) return std::nullopt;
  for (const ZipMember& member : data.members) {
    const size_t slash = member.name.find('/');
    if (slash == std::string::npos || std::string_view(member.name).substr(slash) != "/data.pkl") continue;
    absl::StatusOr<std::string> bytes = ReadZipMember(*data.file, data.archive, member, max_bytes);
    if (!bytes.ok()) return std::nullopt;
    LoadedPickle loaded;
    loaded.bytes = *std::move(bytes);
    // Moving a LoadedPickle may move a short text's bytes, so none is short: they are on the heap.
    loaded.bytes.reserve(sizeof(std::string) * 2);
    absl::StatusOr<std::unique_ptr<Pickle>> pickle = Pickle::Parse(loaded.bytes);
    if (!pickle.ok()) return std::nullopt;
    loaded.pickle = *std::move(pickle);
    return loaded;
  }
  return std::nullopt;
}

namespace {

std::optional<int64_t> WholeNumber(double number) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: below it a double holds every whole number
  if (!(std::fabs(number) <= kExact) || std::floor(number) != number) return std::nullopt;
  return static_cast<int64_t>(number);
}

// The one element of a tensor: torch._utils._rebuild_tensor_v2(storage, offset, size, ...), where storage is
// the persistent id ("storage", class, key, device, elements).
std::optional<int64_t> TensorNumber(DataFile& data, Pickle::Value tensor) {
  const Pickle::Value storage = tensor.args().At(0).of();
  const std::optional<std::string_view> key = storage.At(2).AsText();
  const std::optional<int64_t> offset = tensor.args().At(1).AsInt();
  const std::string type = storage.At(1).ClassName();
  const size_t width = type == "torch.FloatStorage"                                   ? 4
                       : type == "torch.DoubleStorage" || type == "torch.LongStorage" ? 8
                       : type == "torch.IntStorage"                                   ? 4
                                                                                      : 0;
  if (!key.has_value() || !offset.has_value() || *offset < 0 || width == 0) return std::nullopt;
  const std::string wanted = Cat({"/data/", *key});
  for (const ZipMember& member : data.members) {
    const size_t slash = member.name.find('/');
    if (slash == std::string::npos || std::string_view(member.name).substr(slash) != wanted) continue;
    const auto element = static_cast<uint64_t>(*offset);
    if (member.bytes / width <= element || !member.stored) return std::nullopt;
    absl::StatusOr<uint64_t> at = ZipMemberData(*data.file, data.archive, member);
    char raw[8];
    if (!at.ok() || !data.file->ReadAt(*at + element * width, raw, width).ok()) return std::nullopt;
    if (type == "torch.LongStorage") return static_cast<int64_t>(Load64(raw));
    if (type == "torch.IntStorage") return static_cast<int32_t>(Load32(raw));
    float single = 0;
    double twice = 0;
    if (width == 8) {
      memcpy(&twice, raw, sizeof(twice));
      return WholeNumber(twice);
    }
    memcpy(&single, raw, sizeof(single));
    return WholeNumber(single);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> NumberOf(DataFile& data, Pickle::Value value) {
  const std::optional<double> number = value.AsNumber();
  if (value.AsInt().has_value()) return value.AsInt();
  if (number.has_value()) return WholeNumber(*number);
  if (value.kind() != PickleKind::kObject) return std::nullopt;
  if (!std::string_view(value.ClassName()).starts_with("torch._utils._rebuild_tensor")) return std::nullopt;
  return TensorNumber(data, value);
}

}  // namespace dgxrun::agent::ckpt
