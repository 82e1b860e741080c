// What the tests of the judge are made of: a file system in memory, and small writers of the formats, in the
// layout of the real ones.
#ifndef DGXRUN_TESTS_UNIT_CKPT_KIT_H_
#define DGXRUN_TESTS_UNIT_CKPT_KIT_H_

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/ckpt/source.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt::kit {

inline constexpr int64_t kSecond = 1'000'000'000;

struct MemoryFile {
  std::string bytes;
  int64_t mtime_ns = 0;
  int64_t btime_ns = 0;
  std::string link;  // not empty: a symbolic link
};

// Files by path; folders are there if a file is, or if added. Times go up by a millisecond with each Put, as
// if the files had been written one after another.
class MemorySource : public Source {
 public:
  explicit MemorySource(int64_t start_ns = int64_t{1'700'000'000} * kSecond) : clock_ns_(start_ns) {}

  void Put(const std::string& path, std::string bytes) {
    clock_ns_ += 1'000'000;
    files_[path] = {std::move(bytes), clock_ns_, clock_ns_ - 1'000, ""};
  }
  void PutLink(const std::string& path, const std::string& to) {
    files_[path] = {"", clock_ns_, clock_ns_, to};
  }
  void PutFolder(const std::string& path) { folders_.push_back(path); }
  // A second write into the same file.
  void Overwrite(const std::string& path, std::string bytes) {
    clock_ns_ += 1'000'000;
    files_[path].bytes = std::move(bytes);
    files_[path].mtime_ns = clock_ns_;
  }
  void Remove(const std::string& path) { files_.erase(path); }
  void Advance(int64_t ns) { clock_ns_ += ns; }
  int64_t now_ns() const { return clock_ns_; }
  std::map<std::string, MemoryFile>& files() { return files_; }
  void set_one_clock(bool one) { one_clock_ = one; }

  absl::StatusOr<FileInfo> Stat(std::string_view path) override {
    if (absl::Status may = Charge(&Counts::stats, 1, 0); !may.ok()) return may;
    return Info(path);
  }
  absl::StatusOr<std::vector<Entry>> List(std::string_view path) override {
    if (absl::Status may = Charge(&Counts::lists, 1, 0); !may.ok()) return may;
    absl::StatusOr<FileInfo> info = Info(path);
    if (!info.ok()) return info.status();
    if (info->type != FileType::kFolder) return absl::PermissionDeniedError("not a folder");
    const std::string prefix = path.empty() ? "" : Cat({path, "/"});
    std::map<std::string, FileType> names;
    for (const auto& [name, file] : files_) Collect(name, prefix, file.link.empty(), names);
    for (const std::string& name : folders_) Collect(name + "/", prefix, true, names);
    std::vector<Entry> entries;
    for (const auto& [name, type] : names) {
      if (absl::Status may = Charge(&Counts::entries, 1, 0); !may.ok()) return may;
      entries.push_back({name, type});
    }
    return entries;
  }
  absl::StatusOr<std::unique_ptr<File>> Open(std::string_view path) override {
    if (absl::Status may = Charge(&Counts::opens, 1, 0); !may.ok()) return may;
    absl::StatusOr<FileInfo> info = Info(path);
    if (!info.ok()) return info.status();
    if (info->type != FileType::kFile) return absl::PermissionDeniedError("not a file");
    return std::make_unique<Handle>(*info, files_[std::string(path)].bytes, this);
  }
  absl::StatusOr<std::string> ReadLink(std::string_view path) override {
    const auto found = files_.find(std::string(path));
    if (found == files_.end()) return absl::NotFoundError("no such file");
    return found->second.link;
  }
  const std::string& root() const override { return root_; }
  bool one_clock() const override { return one_clock_; }

 private:
  class Handle : public File {
   public:
    Handle(const FileInfo& info, std::string_view bytes, MemorySource* source)
        : File(info), bytes_(bytes), source_(source) {}
    absl::Status ReadAt(uint64_t offset, char* buffer, size_t size) override {
      if (absl::Status may = source_->Charge(&Counts::reads, 1, size); !may.ok()) return may;
      if (offset > bytes_.size() || size > bytes_.size() - offset) return absl::OutOfRangeError("too short");
      std::memcpy(buffer, bytes_.data() + offset, size);
      return absl::OkStatus();
    }

   private:
    std::string bytes_;
    MemorySource* source_;
  };

  static void Collect(std::string_view name, std::string_view prefix, bool plain,
                      std::map<std::string, FileType>& names) {
    if (!name.starts_with(prefix) || name.size() == prefix.size()) return;
    const std::string_view rest = name.substr(prefix.size());
    const size_t slash = rest.find('/');
    const bool folder = slash != std::string_view::npos;
    names[std::string(rest.substr(0, slash))] = folder  ? FileType::kFolder
                                                : plain ? FileType::kFile
                                                        : FileType::kLink;
  }
  absl::StatusOr<FileInfo> Info(std::string_view path) {
    if (!path.empty() && !StaysBeneath(path)) return absl::PermissionDeniedError("leads out of the folder");
    const auto found = files_.find(std::string(path));
    FileInfo info;
    if (found != files_.end()) {
      info.type = found->second.link.empty() ? FileType::kFile : FileType::kLink;
      info.bytes = found->second.bytes.size();
      info.mtime_ns = found->second.mtime_ns;
      info.btime_ns = found->second.btime_ns;
      return info;
    }
    info.type = FileType::kFolder;
    const std::string prefix = Cat({path, "/"});
    const auto below = files_.lower_bound(prefix);
    if (path.empty() || (below != files_.end() && below->first.starts_with(prefix))) return info;
    for (const std::string& folder : folders_) {
      if (folder == path) return info;
    }
    return absl::NotFoundError("no such file");
  }

  std::map<std::string, MemoryFile> files_;
  std::vector<std::string> folders_;
  std::string root_ = "/ckpt";
  bool one_clock_ = true;
  int64_t clock_ns_;
};

inline std::string Le(uint64_t value, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  return out;
}

// ---- pickles: every function gives opcodes that leave one value on the stack.
inline std::string PNone() { return "N"; }
inline std::string PInt(int64_t n) {
  if (n >= INT32_MIN && n <= INT32_MAX) return "J" + Le(static_cast<uint64_t>(n), 4);
  return std::string("\x8a\x08", 2) + Le(static_cast<uint64_t>(n), 8);
}
inline std::string PText(std::string_view text) { return Cat({"X", Le(text.size(), 4), text}); }
inline std::string PGlobal(std::string_view module, std::string_view name) {
  return Cat({"c", module, "\n", name, "\n"});
}
inline std::string PTuple(const std::vector<std::string>& items) {
  std::string out = "(";
  for (const std::string& item : items) out += item;
  return out + "t";
}
inline std::string PDict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += key + value;
  return out + "u";
}
// An instance whose state is `state`.
inline std::string PObject(std::string_view module, std::string_view name, const std::string& state) {
  return PGlobal(module, name) + ")\x81" + state + "b";
}
inline std::string Pickled(const std::string& value) { return std::string("\x80\x02", 2) + value + "."; }

// ---- zip, as torch.save writes it.
using Members = std::vector<std::pair<std::string, std::string>>;
inline std::string Zip(const Members& members, bool zip64 = true, bool with_crc = true) {
  std::string out, directory;
  for (const auto& [name, data] : members) {
    const uint64_t at = out.size();
    const uint32_t crc = with_crc
                             ? static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(data.data()),
                                                           static_cast<uInt>(data.size())))
                             : 0;
    const std::string fields = Le(0, 2) + Le(0x0800, 2) + Le(0, 2) + Le(0, 4) + Le(crc, 4) +
                               Le(data.size(), 4) + Le(data.size(), 4) + Le(name.size(), 2) + Le(0, 2);
    out += std::string("PK\3\4", 4) + fields + name + data;
    directory += std::string("PK\1\2", 4) + Le(0, 2) + fields + Le(0, 2) + Le(0, 2) + Le(0, 2) + Le(0, 4) +
                 Le(at, 4) + name;
  }
  const uint64_t begin = out.size();
  out += directory;
  if (zip64) {
    const uint64_t record = out.size();
    out += std::string("PK\6\6", 4) + Le(44, 8) + Le(0, 2) + Le(0, 2) + Le(0, 4) + Le(0, 4) +
           Le(members.size(), 8) + Le(members.size(), 8) + Le(directory.size(), 8) + Le(begin, 8);
    out += std::string("PK\6\7", 4) + Le(0, 4) + Le(record, 8) + Le(1, 4);
  }
  out += std::string("PK\5\6", 4) + Le(0, 2) + Le(0, 2) + Le(members.size(), 2) + Le(members.size(), 2) +
         Le(directory.size(), 4) + Le(begin, 4) + Le(0, 2);
  return out;
}

// torch.save of a dict; `salt` makes the data differ.
inline std::string TorchFile(const std::vector<std::pair<std::string, std::string>>& dict = {},
                             const std::string& salt = "") {
  std::string data = salt;
  while (data.size() < 600) data += "some tensor bytes ";
  return Zip(
      {{"archive/data.pkl", Pickled(PDict(dict))}, {"archive/data/0", data}, {"archive/version", "3\n"}});
}

inline std::string Safetensors(const std::vector<std::pair<std::string, size_t>>& tensors, char fill = 'x') {
  std::string json = "{\"__metadata__\":{\"format\":\"pt\"}";
  size_t at = 0;
  for (const auto& [name, bytes] : tensors) {
    json += Cat({",\"", name, "\":{\"dtype\":\"F32\",\"shape\":[", Str(bytes / 4), "],\"data_offsets\":[",
                 Str(at), ",", Str(at + bytes), "]}"});
    at += bytes;
  }
  json += "}";
  while (json.size() % 8 != 0) json += " ";
  return Le(json.size(), 8) + json + std::string(at, fill);
}

// ---- torch DCP
struct DcpShard {
  std::string name;
  std::vector<std::string> streams;
};
inline std::string DcpBytes(const DcpShard& shard) {
  std::string out;
  for (const std::string& stream : shard.streams) out += stream;
  return out;
}
inline std::string DcpMetadata(const std::vector<DcpShard>& shards, std::string_view save_id = "save-1",
                               bool megatron = false) {
  const std::string_view module = "torch.distributed.checkpoint.metadata";
  std::vector<std::pair<std::string, std::string>> storage;
  size_t index = 0;
  for (const DcpShard& shard : shards) {
    uint64_t offset = 0;
    for (const std::string& stream : shard.streams) {
      const std::string key = PObject(
          module, "MetadataIndex",
          PDict({{PText("fqn"), PText("model.w" + std::to_string(index++))}, {PText("index"), PInt(0)}}));
      const std::string info = PObject("torch.distributed.checkpoint.filesystem", "_StorageInfo",
                                       PDict({{PText("relative_path"), PText(shard.name)},
                                              {PText("offset"), PInt(static_cast<int64_t>(offset))},
                                              {PText("length"), PInt(static_cast<int64_t>(stream.size()))}}));
      storage.emplace_back(key, info);
      offset += stream.size();
    }
  }
  std::vector<std::pair<std::string, std::string>> fields = {
      {PText("state_dict_metadata"), PDict({})},
      {PText("storage_data"), PDict(storage)},
      {PText("storage_meta"), PObject(module, "StorageMeta", PDict({{PText("save_id"), PText(save_id)}}))}};
  if (megatron) fields.emplace_back(PText("mcore_data"), PDict({}));
  return Pickled(PObject(module, "Metadata", PDict(fields)));
}
inline std::vector<DcpShard> TwoShards(const std::string& salt = "") {
  return {
      {"__0_0.distcp", {TorchFile({}, salt + "a"), TorchFile({}, salt + "b")}},
      {"__1_0.distcp", {TorchFile({}, salt + "c"), TorchFile({}, salt + "d"), TorchFile({}, salt + "e")}}};
}
inline void PutDcp(MemorySource& source, const std::string& folder, const std::vector<DcpShard>& shards,
                   std::string_view save_id = "save-1", bool megatron = false) {
  for (const DcpShard& shard : shards) source.Put(JoinPath(folder, shard.name), DcpBytes(shard));
  source.Put(JoinPath(folder, ".metadata"), DcpMetadata(shards, save_id, megatron));
}

// ---- transformers' Trainer
inline void PutTrainer(MemorySource& source, const std::string& folder, int64_t step, int ranks = 2) {
  auto put = [&](const std::string& name, std::string bytes) {
    source.Put(JoinPath(folder, name), std::move(bytes));
  };
  put("config.json", "{\"model_type\": \"gpt2\"}");
  put("generation_config.json", "{}");
  put("model.safetensors", Safetensors({{"w", 512}, {"b", 64}}));
  put("training_args.bin", TorchFile());
  put("optimizer.pt", TorchFile({{PText("state"), PDict({})}}));
  put("scheduler.pt", TorchFile({{PText("last_epoch"), PInt(step)}}));
  for (int rank = 0; rank < ranks; ++rank)
    put(Cat({"rng_state_", std::to_string(rank), ".pth"}), TorchFile());
  put("trainer_state.json", Cat({"{\"epoch\": 1.5, \"global_step\": ", std::to_string(step),
                                 ", \"log_history\": [{\"loss\": NaN}]}"}));
}

}  // namespace dgxrun::agent::ckpt::kit

#endif  // DGXRUN_TESTS_UNIT_CKPT_KIT_H_
