// torch.distributed.checkpoint (and torchtitan, which keeps one per step).
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "agent/ckpt/data_file.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/text.h"
#include "agent/ckpt/zip.h"
#include "agent/utf8.h"

namespace dgxrun::agent::ckpt {
namespace {

constexpr char kMetadata[] = ".metadata";
constexpr char kMetadataTmp[] = ".metadata.tmp";
// Items of one shard whose ends are looked at when only structure is judged, the last ones; and of all
// shards.
constexpr size_t kWalkedItemsOfShard = 64;
constexpr size_t kWalkedItems = 100000;

struct Item {
  uint64_t offset;
  uint64_t length;
};
struct Shard {
  std::vector<Item> items;
  uint64_t end = 0;
  bool transformed = false;  // compressed or the like: not a torch.save stream
};
struct Metadata {
  std::map<std::string, Shard> shards;  // by relative path
  std::string save_id;
  bool megatron = false;
};

// One value of storage_data: _StorageInfo(relative_path, offset, length, transform_descriptors).
absl::Status AddItem(Pickle::Value info, Metadata& metadata) {
  const std::optional<std::string_view> path = info.Get("relative_path").AsText();
  const std::optional<int64_t> offset = info.Get("offset").AsInt();
  const std::optional<int64_t> length = info.Get("length").AsInt();
  if (!path.has_value() || !offset.has_value() || !length.has_value()) {
    return absl::UnimplementedError("it tells where data lies in a way that is not known");
  }
  if (!StaysBeneath(*path)) {
    return absl::DataLossError(
        Cat({"it names ", ToPrintable(std::string(*path)), ", which leads out of the folder"}));
  }
  if (*offset < 0 || *length < 0 || *offset > INT64_MAX - *length) {
    return absl::DataLossError("it names a place that cannot be");
  }
  Shard& shard = metadata.shards[std::string(*path)];
  const Item item = {static_cast<uint64_t>(*offset), static_cast<uint64_t>(*length)};
  shard.items.push_back(item);
  shard.end = std::max(shard.end, item.offset + item.length);
  shard.transformed = shard.transformed || info.Get("transform_descriptors").size() > 0;
  return absl::OkStatus();
}

absl::StatusOr<Metadata> ParseMetadata(std::string_view bytes) {
  if (bytes.empty()) return absl::OutOfRangeError("empty");
  if (bytes.find_first_not_of('\0') == std::string_view::npos) {
    return absl::DataLossError("nothing but zeros: its data never reached the disk");
  }
  absl::StatusOr<std::unique_ptr<Pickle>> pickle = Pickle::Parse(bytes);
  if (!pickle.ok()) return pickle.status();
  if ((*pickle)->bytes_used() != bytes.size()) return absl::DataLossError("bytes after its end");
  if ((*pickle)->has_nul_text()) return absl::DataLossError("zeros within a name");
  const Pickle::Value root = (*pickle)->root();
  const Pickle::Value storage = root.Get("storage_data");
  if (root.kind() != PickleKind::kObject || storage.kind() != PickleKind::kDict) {
    return absl::UnimplementedError("it does not say where data lies");
  }
  Metadata metadata;
  metadata.save_id = std::string(root.Get("storage_meta").Get("save_id").AsText().value_or(""));
  metadata.megatron = !root.Get("mcore_data").absent();
  absl::Status status;
  storage.ForEachPair([&](Pickle::Value, Pickle::Value info) {
    status = AddItem(info, metadata);
    return status.ok();
  });
  if (!status.ok()) return status;
  for (auto& [path, shard] : metadata.shards) {
    std::sort(shard.items.begin(), shard.items.end(),
              [](const Item& a, const Item& b) { return a.offset < b.offset; });
  }
  return metadata;
}

// The torch.save stream that ends at `end`, with its checksums under a deep judgement.
absl::StatusOr<ZipArchive> CheckStream(Review& review, File& file, uint64_t end) {
  absl::StatusOr<ZipArchive> archive = FindZip(file, end);
  if (!archive.ok() || !review.options().deep) return archive;
  absl::StatusOr<std::vector<ZipMember>> members = ReadZipDirectory(file, *archive);
  if (!members.ok()) return members.status();
  if (absl::Status crcs = CheckZipCrcs(file, *archive, *members); !crcs.ok()) return crcs;
  return archive;
}

// Why an item is not the stream that it should be.
absl::Status NotAStream(File& file, const Item& item, const absl::Status& found) {
  char head[4] = {};
  const size_t size = std::min<uint64_t>(item.length, sizeof(head));
  if (absl::Status read = file.ReadAt(item.offset, head, size); !read.ok()) return read;
  const std::string_view begin(head, size);
  if (begin.find_first_not_of('\0') == std::string_view::npos) {
    return absl::DataLossError(Cat({"zeros where data should be, at byte ", Str(item.offset)}));
  }
  if (begin == std::string_view("PK\3\4", 4)) {
    return absl::DataLossError(Cat({"damaged between bytes ", Str(item.offset), " and ",
                                    Str(item.offset + item.length), ": ", std::string(found.message())}));
  }
  return absl::UnimplementedError("data in a form that is not read");
}

absl::Status CheckItems(Review& review, File& file, const Shard& shard, size_t& left) {
  size_t walked = 0;
  for (auto item = shard.items.rbegin(); item != shard.items.rend(); ++item) {
    if (!review.options().deep && (walked >= kWalkedItemsOfShard || left == 0)) break;
    if (item->length == 0) continue;
    if (left > 0) --left;
    ++walked;
    absl::StatusOr<ZipArchive> archive = CheckStream(review, file, item->offset + item->length);
    if (archive.ok() && archive->begin == item->offset) continue;
    if (archive.ok()) {
      return absl::DataLossError(Cat({"holds other data than .metadata says, at byte ", Str(item->offset)}));
    }
    if (!absl::IsDataLoss(archive.status()) && !absl::IsOutOfRange(archive.status())) return archive.status();
    return NotAStream(file, *item, archive.status());
  }
  return absl::OkStatus();
}

// Without metadata: streams from the end to the beginning, with nothing in between.
absl::Status WalkShard(Review& review, File& file) {
  uint64_t end = file.info().bytes;
  for (size_t walked = 0; end > 0; ++walked) {
    if (!review.options().deep && walked >= kWalkedItemsOfShard) break;
    absl::StatusOr<ZipArchive> archive = CheckStream(review, file, end);
    if (!archive.ok()) {
      // Only the last one can have been cut off.
      return end == file.info().bytes ? archive.status()
                                      : absl::DataLossError(std::string(archive.status().message()));
    }
    end = archive->begin;
  }
  return absl::OkStatus();
}

// One shard against the metadata. `mark`: the metadata's file.
void CheckShard(Review& review, std::string_view folder, std::string_view mark, const std::string& name,
                const Shard& shard, size_t& left) {
  const std::string path = JoinPath(folder, name);
  const FileInfo* info = review.tree().Find(path);
  if (info == nullptr) {
    review.Missing(path, shard.end, Cat({"missing: ", mark, " names it"}));
    return;
  }
  const std::unique_ptr<File> file = review.Open(path);
  if (file == nullptr) return;
  const uint64_t size = file->info().bytes;
  if (size < shard.end) {
    review.Fault(v1::VERDICT_PARTIAL, path, Cat({"cut off: ", Str(size), " of ", Str(shard.end), " bytes"}));
    return;
  }
  if (size > shard.end) {
    review.Fault(v1::VERDICT_CORRUPT, path,
                 Cat({"longer than ", mark, " says: ", Str(size), " instead of ", Str(shard.end),
                      " bytes: files of two saves"}));
    return;
  }
  if (!review.CheckOrder(path, JoinPath(folder, mark))) return;
  if (shard.transformed) {
    if (review.options().deep) {
      review.Fault(v1::VERDICT_UNVERIFIED, path,
                   "compressed or otherwise transformed: only its length was checked");
    }
  } else if (absl::Status items = CheckItems(review, *file, shard, left); !items.ok()) {
    review.FaultOf(items, path);
    return;
  }
  review.Sound(path);
}

bool ReadMetadata(Review& review, const std::string& path, Metadata& metadata) {
  std::optional<std::string> bytes = review.ReadAll(path);
  if (!bytes.has_value()) return false;
  absl::StatusOr<Metadata> parsed = ParseMetadata(*bytes);
  if (!parsed.ok()) {
    review.FaultOf(parsed.status(), path);
    return false;
  }
  metadata = *std::move(parsed);
  return true;
}

// All shards were written anew, and the rename of .metadata.tmp is all that did not happen.
bool NewerSaveWaits(Review& review, std::string_view folder) {
  const FileInfo* tmp = review.tree().Find(JoinPath(folder, kMetadataTmp));
  const FileInfo* old = review.tree().Find(JoinPath(folder, kMetadata));
  if (tmp == nullptr || old == nullptr || tmp->mtime_ns < old->mtime_ns) return false;
  bool newer = false;
  review.tree().ForEachIn(folder, [&](std::string_view name, const FileInfo& info) {
    newer = newer || (name.ends_with(".distcp") && info.mtime_ns > old->mtime_ns);
  });
  return newer;
}

void JudgeWithoutMetadata(Review& review, std::string_view folder) {
  review.tree().ForEachIn(folder, [&](std::string_view name, const FileInfo&) {
    if (!name.ends_with(".distcp")) return;
    const std::string path = JoinPath(folder, name);
    const std::unique_ptr<File> file = review.Open(path);
    if (file == nullptr) return;
    const absl::Status walked = WalkShard(review, *file);
    if (walked.ok()) {
      review.Sound(path);
    } else {
      review.FaultOf(walked, path);
    }
  });
  review.Missing(JoinPath(folder, kMetadata), 0,
                 "no .metadata: the save did not reach its end (or it lies on another node)");
}

}  // namespace

bool LooksLikeDcp(const Tree& tree, std::string_view folder) {
  bool found = false;
  tree.ForEachIn(folder, [&found](std::string_view name, const FileInfo&) {
    found = found || name == kMetadata || name == kMetadataTmp || name.ends_with(".distcp");
  });
  return found;
}

DcpAnswer JudgeDcp(Review& review, std::string_view folder) {
  const bool has_tmp = review.tree().Has(JoinPath(folder, kMetadataTmp));
  const bool has_final = review.tree().Has(JoinPath(folder, kMetadata));
  const bool waits = has_tmp && (!has_final || NewerSaveWaits(review, folder));
  DcpAnswer answer;
  if (!has_final && !has_tmp) {
    JudgeWithoutMetadata(review, folder);
    return answer;
  }
  const std::string_view mark = waits ? kMetadataTmp : kMetadata;
  Metadata metadata;
  if (!ReadMetadata(review, JoinPath(folder, mark), metadata)) return answer;
  answer.metadata = true;
  answer.megatron = metadata.megatron;
  review.SetSaveId(metadata.save_id);
  review.Sound(JoinPath(folder, mark));
  size_t left = kWalkedItems;
  for (const auto& [name, shard] : metadata.shards) CheckShard(review, folder, mark, name, shard, left);
  if (waits) {
    review.Fault(
        v1::VERDICT_UNCOMMITTED, JoinPath(folder, kMetadataTmp),
        "all shards are there, only the last step of the save is not: rename .metadata.tmp to .metadata");
  }
  return answer;
}

}  // namespace dgxrun::agent::ckpt
