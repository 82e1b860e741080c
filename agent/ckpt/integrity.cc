// Megatron's integrity.json (--verify-integrity): {"algorithm": "sha256", "files": {name: digest in hex}}, of
// all files that lay right in the folder, written after them by rank 0.
#include <openssl/evp.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/json_scan.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

constexpr std::string_view kManifest = "integrity.json";
constexpr size_t kHashedAtOnce = size_t{1} << 20;  // a disk's large read

struct FreeDigest {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

// In lower case; nullopt: the fault is noted.
std::optional<std::string> Sha256Of(Review& review, const std::string& path) {
  const std::unique_ptr<File> file = review.Open(path);
  if (file == nullptr) return std::nullopt;
  const std::unique_ptr<EVP_MD_CTX, FreeDigest> context(EVP_MD_CTX_new());
  const auto failed = [&] {
    review.Fault(v1::VERDICT_UNVERIFIED, path, "its SHA-256 cannot be computed");
    return std::nullopt;
  };
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) return failed();
  std::string chunk(kHashedAtOnce, '\0');
  const uint64_t bytes = file->info().bytes;
  for (uint64_t done = 0; done < bytes;) {
    const size_t size = std::min<uint64_t>(bytes - done, chunk.size());
    if (absl::Status read = file->ReadAt(done, chunk.data(), size); !read.ok()) {
      review.FaultOf(read, path);
      return std::nullopt;
    }
    if (EVP_DigestUpdate(context.get(), chunk.data(), size) != 1) return failed();
    done += size;
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (EVP_DigestFinal_ex(context.get(), digest, &length) != 1) return failed();
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), length));
}

}  // namespace

void CheckIntegrity(Review& review, std::string_view folder) {
  const std::string manifest = JoinPath(folder, kManifest);
  if (!review.tree().Has(manifest)) return;
  const std::optional<std::string> text = review.ReadAll(manifest);
  if (!text.has_value()) return;
  std::map<std::string, std::string> digests;
  std::string algorithm = "sha256";
  const absl::Status scanned =
      ScanJson(*text, [&](const std::vector<std::string>& keys, const JsonScalar& scalar) {
        if (!scalar.text.has_value()) return true;
        if (keys.size() == 1 && keys[0] == "algorithm") algorithm = std::string(*scalar.text);
        if (keys.size() == 2 && keys[0] == "files")
          digests[keys[1]] = absl::AsciiStrToLower(std::string(*scalar.text));
        return digests.size() <= kMaxFilesOfCheckpoint;
      });
  if (!scanned.ok()) return review.FaultOf(scanned, manifest);
  for (const auto& [name, digest] : digests) {
    if (!StaysBeneath(name) || name.find('/') != std::string::npos) {
      return review.Fault(v1::VERDICT_CORRUPT, manifest, "names a file that is not beside it");
    }
    const std::string path = JoinPath(folder, name);
    if (!review.tree().Has(path)) {
      review.Missing(path, 0, Cat({"missing: ", kManifest, " names it"}));
      continue;
    }
    review.CheckOrder(path, manifest);
    if (!review.options().deep) continue;
    if (algorithm != "sha256") {
      return review.Fault(v1::VERDICT_UNVERIFIED, manifest, Cat({"holds ", algorithm, ", not sha256"}));
    }
    const std::optional<std::string> found = Sha256Of(review, path);
    if (found.has_value() && *found != digest) {
      review.Fault(v1::VERDICT_CORRUPT, path, Cat({"its bytes do not match their SHA-256 in ", kManifest}));
    }
  }
}

}  // namespace dgxrun::agent::ckpt
