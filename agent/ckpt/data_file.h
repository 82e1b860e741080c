// One file of data: torch.save's zip, its old format, a pickle, or safetensors; told by content.
#ifndef DGXRUN_AGENT_CKPT_DATA_FILE_H_
#define DGXRUN_AGENT_CKPT_DATA_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/ckpt/pickle.h"
#include "agent/ckpt/review.h"
#include "agent/ckpt/source.h"
#include "agent/ckpt/zip.h"

namespace dgxrun::agent::ckpt {

enum class DataKind {
  kBad,     // the fault is noted
  kZip,     // torch.save, or NumPy's npz
  kLegacy,  // torch.save before its zip format; noted as UNVERIFIED
  kPickle,  // a bare pickle
  kSafetensors,
  kUnknown,  // no known signature; noted as UNVERIFIED
};

// A pickle and the bytes that its values refer to.
struct LoadedPickle {
  std::string bytes;
  std::unique_ptr<Pickle> pickle;
  Pickle::Value root() const { return pickle->root(); }
};

struct DataFile {
  DataKind kind = DataKind::kBad;
  std::unique_ptr<File> file;
  ZipArchive archive;              // kZip
  std::vector<ZipMember> members;  // kZip, unless the directory is large and the judgement not deep
  std::set<std::string> tensors;   // kSafetensors: their names
};

// Judges a file and notes what is wrong with it. A missing one is noted as Missing.
DataFile CheckDataFile(Review& review, std::string_view file);
// The same for a safetensors file, whatever it looks like.
DataFile CheckSafetensors(Review& review, std::string_view file);

// A pickle that is read only for a number or two: the parameters' names of a large model take 1 MB.
inline constexpr uint64_t kMaxPeekedPickle = uint64_t{16} << 20;
// data.pkl of a kZip. nullopt: none, too large, or not readable; nothing is noted.
std::optional<LoadedPickle> ReadDataPickle(DataFile& data, uint64_t max_bytes = kMaxPeekedPickle);
// A number, also one in a tensor of one element, whose bytes lie in another member.
std::optional<int64_t> NumberOf(DataFile& data, Pickle::Value value);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_DATA_FILE_H_
