// Zip archives, from any bytes: the end, the directory, the members. What is found lies in the file, and
// reads are as many as the members.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/ckpt/zip.h"
#include "tests/fuzz/require.h"
#include "tests/unit/ckpt_kit.h"

using namespace dgxrun::agent::ckpt;  // NOLINT: one fuzzer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kit::MemorySource source;
  source.Put("f", std::string(reinterpret_cast<const char*>(data), size));
  const std::unique_ptr<File> file = *source.Open("f");
  for (uint64_t end = size; end > 0;) {
    absl::StatusOr<ZipArchive> archive = FindZip(*file, end);
    if (!archive.ok()) break;
    dgxrun::Require(archive->begin < end && archive->end == end, "an archive outside of its file");
    absl::StatusOr<std::vector<ZipMember>> members = ReadZipDirectory(*file, *archive);
    if (members.ok()) {
      for (const ZipMember& member : *members) {
        dgxrun::Require(member.header >= archive->begin && member.bytes <= end - member.header,
                        "a member outside of its archive");
        absl::StatusOr<std::string> bytes = ReadZipMember(*file, *archive, member, 1 << 16);
        if (bytes.ok()) dgxrun::Require(bytes->size() == member.bytes, "another size");
      }
      CheckZipCrcs(*file, *archive, *members).IgnoreError();
    }
    end = archive->begin;
  }
  return 0;
}
