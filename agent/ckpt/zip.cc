#include "agent/ckpt/zip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "agent/ckpt/little_endian.h"
#include "agent/ckpt/text.h"
#include "agent/utf8.h"

namespace dgxrun::agent::ckpt {
namespace {

constexpr std::string_view kLocalMagic("PK\3\4", 4);
constexpr std::string_view kDirectoryMagic("PK\1\2", 4);
constexpr std::string_view kEndMagic("PK\5\6", 4);
constexpr std::string_view kEnd64Magic("PK\6\6", 4);
constexpr std::string_view kLocator64Magic("PK\6\7", 4);
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kDirectoryBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint16_t kZip64Extra = 1;
// Fields that a local header and its directory entry share, up to the CRC-32, and where they begin in each.
constexpr size_t kSharedBytes = 14;
constexpr size_t kSharedInLocal = 4;
constexpr size_t kSharedInDirectory = 6;
// Of the flags: sizes and CRC-32 follow the data, and the local header's are zero.
constexpr uint16_t kFollows = 8;
constexpr uint32_t kIn64 = 0xFFFFFFFF;  // "look into the ZIP64 extra field"
// Read at an archive's end: the three records and, for the archives of single tensors in a .distcp, the
// directory.
constexpr uint64_t kTailBytes = 1024;
// Read at once when data is checked: large enough that a disk streams.
constexpr size_t kChunkBytes = size_t{1} << 20;

absl::Status CutOff() { return absl::OutOfRangeError("cut off: it does not end with a zip archive's end"); }
absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(Cat({"damaged zip archive: ", what}));
}

bool HasMagic(std::string_view at, std::string_view magic) { return at.starts_with(magic); }

// What the records at the end say, offsets still relative to the archive's begin.
struct EndRecord {
  uint64_t directory = 0;
  uint64_t directory_bytes = 0;
  uint64_t members = 0;
  uint64_t at = 0;  // of the file: where the directory must end
};

absl::StatusOr<EndRecord> ReadEndRecord(std::string_view tail, uint64_t end) {
  if (tail.size() < kEndBytes) return CutOff();
  const char* record = tail.data() + tail.size() - kEndBytes;
  if (!HasMagic({record, kEndBytes}, kEndMagic) || Load16(record + 20) != 0) return CutOff();
  EndRecord found;
  found.members = Load16(record + 10);
  found.directory_bytes = Load32(record + 12);
  found.directory = Load32(record + 16);
  found.at = end - kEndBytes;
  constexpr uint64_t kBoth = kEnd64Bytes + kLocator64Bytes;
  if (tail.size() < kEndBytes + kLocator64Bytes ||
      !HasMagic({record - kLocator64Bytes, kLocator64Bytes}, kLocator64Magic)) {
    return found;
  }
  if (tail.size() < kEndBytes + kBoth) return CutOff();
  const char* record64 = record - kBoth;
  if (!HasMagic({record64, kEnd64Bytes}, kEnd64Magic))
    return Damaged("its ZIP64 record is not where it should be");
  found.members = Load64(record64 + 32);
  found.directory_bytes = Load64(record64 + 40);
  found.directory = Load64(record64 + 48);
  found.at -= kBoth;
  const uint64_t said = Load64(record - kLocator64Bytes + 8);
  if (said != found.directory + found.directory_bytes)
    return Damaged("its end records contradict each other");
  return found;
}

}  // namespace

absl::StatusOr<ZipArchive> FindZip(File& file, uint64_t end) {
  char buffer[kTailBytes];
  const uint64_t size = std::min<uint64_t>(end, kTailBytes);
  if (size < kEndBytes) return CutOff();
  if (absl::Status read = file.ReadAt(end - size, buffer, size); !read.ok()) return read;
  const std::string_view tail(buffer, size);
  absl::StatusOr<EndRecord> record = ReadEndRecord(tail, end);
  if (!record.ok()) return record.status();
  // Written so that no sum can overflow.
  if (record->directory_bytes > record->at || record->directory > record->at - record->directory_bytes) {
    return Damaged("its directory would begin before the file");
  }
  ZipArchive archive;
  archive.end = end;
  archive.members = record->members;
  archive.directory_bytes = record->directory_bytes;
  archive.directory = record->at - record->directory_bytes;
  archive.begin = archive.directory - record->directory;
  if (archive.members == 0) return archive;
  if (archive.directory_bytes / kDirectoryBytes < archive.members)
    return Damaged("its directory is too small");
  char magic[4];
  if (archive.directory >= end - size) {
    if (!HasMagic(tail.substr(archive.directory - (end - size)), kDirectoryMagic)) {
      return Damaged("no directory where its end says");
    }
  } else {
    if (absl::Status read = file.ReadAt(archive.directory, magic, sizeof(magic)); !read.ok()) return read;
    if (!HasMagic({magic, sizeof(magic)}, kDirectoryMagic)) return Damaged("no directory where its end says");
  }
  if (absl::Status read = file.ReadAt(archive.begin, magic, sizeof(magic)); !read.ok()) return read;
  if (!HasMagic({magic, sizeof(magic)}, kLocalMagic)) return Damaged("it does not begin with a member");
  return archive;
}

namespace {

// Sizes and offset of a directory entry that did not fit into 32 bits.
absl::Status ReadZip64Extra(std::string_view extra, bool has_size, bool has_stored, bool has_offset,
                            ZipMember& member) {
  while (extra.size() >= 4) {
    const uint16_t id = Load16(extra.data());
    const uint16_t size = Load16(extra.data() + 2);
    extra.remove_prefix(4);
    if (size > extra.size()) return Damaged("an extra field is too long");
    if (id != kZip64Extra) {
      extra.remove_prefix(size);
      continue;
    }
    std::string_view field = extra.substr(0, size);
    auto take = [&field](bool wanted, uint64_t& to) {
      if (!wanted) return true;
      if (field.size() < 8) return false;
      to = Load64(field.data());
      field.remove_prefix(8);
      return true;
    };
    uint64_t plain = 0;
    if (!take(has_size, plain) || !take(has_stored, member.bytes) || !take(has_offset, member.header)) break;
    return absl::OkStatus();
  }
  return Damaged("a ZIP64 field is missing");
}

// Takes one entry from the front of the directory. Offsets still relative.
absl::StatusOr<ZipMember> TakeEntry(std::string_view& directory) {
  if (directory.size() < kDirectoryBytes || !HasMagic(directory, kDirectoryMagic)) {
    return Damaged("its directory breaks off");
  }
  const char* entry = directory.data();
  const uint64_t name = Load16(entry + 28), extra = Load16(entry + 30), comment = Load16(entry + 32);
  const uint64_t size = kDirectoryBytes + name + extra + comment;
  if (size > directory.size()) return Damaged("its directory breaks off");
  ZipMember member;
  member.stored = Load16(entry + 10) == 0;
  if ((Load16(entry + 8) & 1) != 0) return absl::UnimplementedError("an encrypted zip archive");
  member.crc32 = Load32(entry + 16);
  member.bytes = Load32(entry + 20);
  const uint32_t plain = Load32(entry + 24);
  member.header = Load32(entry + 42);
  member.name = std::string(directory.substr(kDirectoryBytes, name));
  member.shared = std::string(directory.substr(kSharedInDirectory, kSharedBytes));
  if (plain == kIn64 || member.bytes == kIn64 || member.header == kIn64) {
    absl::Status read = ReadZip64Extra(directory.substr(kDirectoryBytes + name, extra), plain == kIn64,
                                       member.bytes == kIn64, member.header == kIn64, member);
    if (!read.ok()) return read;
  }
  directory.remove_prefix(size);
  return member;
}

}  // namespace

absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(File& file, const ZipArchive& archive) {
  if (archive.directory_bytes > kMaxZipDirectoryBytes) {
    return absl::ResourceExhaustedError("a larger zip directory than is read");
  }
  std::string bytes(archive.directory_bytes, '\0');
  if (absl::Status read = file.ReadAt(archive.directory, bytes.data(), bytes.size()); !read.ok()) return read;
  std::string_view left = bytes;
  std::vector<ZipMember> members;
  members.reserve(archive.members);  // at most directory_bytes / 46, which FindZip has checked
  const uint64_t room = archive.directory - archive.begin;
  for (uint64_t i = 0; i < archive.members; ++i) {
    absl::StatusOr<ZipMember> member = TakeEntry(left);
    if (!member.ok()) return member.status();
    if (member->header > room || member->bytes > room - member->header ||
        kLocalBytes > room - member->header - member->bytes) {
      return Damaged("a member lies outside of it");
    }
    member->header += archive.begin;
    members.push_back(*std::move(member));
  }
  if (!left.empty()) return Damaged("its directory has more than its members");
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const ZipMember& member : members) places.emplace_back(member.header, kLocalBytes + member.bytes);
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i].first - places[i - 1].first < places[i - 1].second) return Damaged("two members overlap");
  }
  return members;
}

absl::StatusOr<uint64_t> ZipMemberData(File& file, const ZipArchive& archive, const ZipMember& member) {
  char header[kLocalBytes];
  if (absl::Status read = file.ReadAt(member.header, header, sizeof(header)); !read.ok()) return read;
  const std::string name = ToPrintable(member.name);
  if (!HasMagic({header, sizeof(header)}, kLocalMagic)) return Damaged(Cat({"no header of ", name}));
  const bool follows = (Load16(header + 6) & kFollows) != 0;
  const size_t shared = follows ? kSharedBytes - 4 : kSharedBytes;
  if (std::string_view(header + kSharedInLocal, shared) !=
      std::string_view(member.shared).substr(0, shared)) {
    return Damaged(Cat({"the header of ", name, " does not fit its directory"}));
  }
  const uint64_t name_bytes = Load16(header + 26);
  const uint64_t data = member.header + kLocalBytes + name_bytes + Load16(header + 28);
  if (name_bytes != member.name.size() || data > archive.directory ||
      member.bytes > archive.directory - data) {
    return Damaged(Cat({"the header of ", name, " does not fit its directory"}));
  }
  return data;
}

absl::StatusOr<std::string> ReadZipMember(File& file, const ZipArchive& archive, const ZipMember& member,
                                          uint64_t max_bytes) {
  if (!member.stored) return absl::UnimplementedError("a compressed zip member");
  if (member.bytes > max_bytes) return absl::ResourceExhaustedError("a larger zip member than is read");
  absl::StatusOr<uint64_t> data = ZipMemberData(file, archive, member);
  if (!data.ok()) return data.status();
  std::string bytes(member.bytes, '\0');
  if (bytes.empty()) return bytes;
  if (absl::Status read = file.ReadAt(*data, bytes.data(), bytes.size()); !read.ok()) return read;
  return bytes;
}

absl::Status CheckZipCrcs(File& file, const ZipArchive& archive, const std::vector<ZipMember>& members) {
  std::string chunk(kChunkBytes, '\0');
  for (const ZipMember& member : members) {
    absl::StatusOr<uint64_t> data = ZipMemberData(file, archive, member);
    if (!data.ok()) return data.status();
    if (!member.stored) return absl::UnimplementedError("a compressed zip member");
    uLong crc = crc32(0, Z_NULL, 0);
    for (uint64_t done = 0; done < member.bytes;) {
      const size_t size = std::min<uint64_t>(member.bytes - done, chunk.size());
      if (absl::Status read = file.ReadAt(*data + done, chunk.data(), size); !read.ok()) return read;
      crc = crc32(crc, reinterpret_cast<const Bytef*>(chunk.data()), static_cast<uInt>(size));
      done += size;
    }
    if (member.crc32 != 0 && crc != member.crc32) {
      return Damaged(Cat({"the bytes of ", ToPrintable(member.name), " do not match their checksum"}));
    }
  }
  return absl::OkStatus();
}

}  // namespace dgxrun::agent::ckpt
