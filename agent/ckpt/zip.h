// Zip archives as torch.save writes them: members stored, not compressed; local headers first, then the
// central directory, then the records of its end, so that any truncation loses the end.
//
// One file may hold several archives one after another (.distcp of torch DCP): an archive is found by where
// it ends. Layout of its end: [central directory] [ZIP64 record 56 bytes] [ZIP64 locator 20 bytes] [end
// record 22 bytes]; the two of ZIP64 are only there where the writer wanted them (torch always does).
//
// Errors: kOutOfRange (cut off, or no archive ends there), kDataLoss (it contradicts itself), kUnimplemented
// (comments, several disks, encryption, compressed members under CheckCrc), and those of the file.
#ifndef DGXRUN_AGENT_CKPT_ZIP_H_
#define DGXRUN_AGENT_CKPT_ZIP_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/ckpt/source.h"

namespace dgxrun::agent::ckpt {

// All offsets are of the file.
struct ZipArchive {
  uint64_t begin = 0;
  uint64_t directory = 0;  // where the central directory begins
  uint64_t directory_bytes = 0;
  uint64_t members = 0;
  uint64_t end = 0;
};

struct ZipMember {
  std::string name;
  uint64_t header = 0;  // offset of its local header in the file
  uint64_t bytes = 0;   // as stored
  uint32_t crc32 = 0;   // 0: not known, or of an empty member
  bool stored = true;   // not compressed
  std::string shared;   // the fields that its local header must repeat: version, flags, method, time, CRC-32
};

// The directory of a torch.save file with a million tensors has 100 MB; nobody saves more in one file.
inline constexpr uint64_t kMaxZipDirectoryBytes = uint64_t{128} << 20;

// The archive that ends exactly at `end`: finds its begin, and sees that the directory and the first header
// are where they should be. Two reads.
absl::StatusOr<ZipArchive> FindZip(File& file, uint64_t end);

// The central directory: as many members as it should have, each within the archive, none over another.
absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(File& file, const ZipArchive& archive);

// Where a member's bytes begin. Reads its local header, which must be the same member's.
absl::StatusOr<uint64_t> ZipMemberData(File& file, const ZipArchive& archive, const ZipMember& member);

// The bytes of one member; kResourceExhausted if it has more than `max_bytes`.
absl::StatusOr<std::string> ReadZipMember(File& file, const ZipArchive& archive, const ZipMember& member,
                                          uint64_t max_bytes);

// Reads every byte of every member. kDataLoss names the first whose CRC-32 is wrong. Members whose stored CRC
// is 0 are read and not judged (torch.serialization.set_crc32_options(False)).
absl::Status CheckZipCrcs(File& file, const ZipArchive& archive, const std::vector<ZipMember>& members);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_ZIP_H_
