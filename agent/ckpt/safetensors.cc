#include "agent/ckpt/safetensors.h"

#include <algorithm>
#include <map>
#include <optional>

#include "agent/ckpt/json_scan.h"
#include "agent/ckpt/little_endian.h"
#include "agent/ckpt/text.h"
#include "agent/utf8.h"

namespace dgxrun::agent::ckpt {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kChunkBytes = size_t{1} << 20;  // large enough that a disk streams

struct RawTensor {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
};

uint64_t ElementBytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  return 1;
}
bool IsFloat(std::string_view dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(Cat({"damaged safetensors header: ", what}));
}

absl::StatusOr<std::map<std::string, RawTensor>> ParseHeader(std::string_view json) {
  std::map<std::string, RawTensor> tensors;
  bool bad = false;
  JsonSummary summary;
  absl::Status scanned = ScanJson(
      json,
      [&](const std::vector<std::string>& keys, const JsonScalar& scalar) {
        if (keys.size() < 2 || keys[0] == "__metadata__") return true;
        RawTensor& tensor = tensors[keys[0]];
        if (keys[1] == "dtype" && scalar.text.has_value()) tensor.dtype = std::string(*scalar.text);
        std::vector<uint64_t>* list = keys[1] == "shape"          ? &tensor.shape
                                      : keys[1] == "data_offsets" ? &tensor.offsets
                                                                  : nullptr;
        if (list == nullptr) return true;
        bad = !scalar.integer.has_value() || *scalar.integer < 0;
        if (!bad) list->push_back(static_cast<uint64_t>(*scalar.integer));
        return !bad;
      },
      &summary);
  if (!scanned.ok()) return Damaged(std::string(scanned.message()));
  if (bad || !summary.object) return Damaged("it is not of the format");
  return tensors;
}

uint64_t RowBytes(const RawTensor& raw) {
  if (raw.shape.empty()) return 0;
  const uint64_t element = ElementBytes(raw.dtype);
  return raw.shape.back() > UINT64_MAX / element ? 0 : raw.shape.back() * element;
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(File& file) {
  char length_bytes[kLengthBytes];
  if (file.info().bytes < kLengthBytes) return absl::OutOfRangeError("cut off: it ends within its header");
  if (absl::Status read = file.ReadAt(0, length_bytes, kLengthBytes); !read.ok()) return read;
  const uint64_t length = Load64(length_bytes);
  if (length == 0 || length > kMaxSafetensorsHeaderBytes) return Damaged("its length is not possible");
  if (length > file.info().bytes - kLengthBytes)
    return absl::OutOfRangeError("cut off: it ends within its header");
  std::string json(length, '\0');
  if (absl::Status read = file.ReadAt(kLengthBytes, json.data(), json.size()); !read.ok()) return read;
  absl::StatusOr<std::map<std::string, RawTensor>> raw = ParseHeader(json);
  if (!raw.ok()) return raw.status();
  SafetensorsHeader header;
  header.data = kLengthBytes + length;
  for (const auto& [name, tensor] : *raw) {
    if (tensor.offsets.size() != 2 || tensor.offsets[0] > tensor.offsets[1] ||
        tensor.offsets[1] > UINT64_MAX - header.data) {
      return Damaged(Cat({"no place for ", ToPrintable(name)}));
    }
    header.tensors.push_back({name, tensor.dtype, header.data + tensor.offsets[0],
                              header.data + tensor.offsets[1], RowBytes(tensor)});
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  header.end = header.data;
  for (const SafeTensor& tensor : header.tensors) {
    if (tensor.begin != header.end)
      return Damaged(Cat({"a hole or an overlap before ", ToPrintable(tensor.name)}));
    header.end = tensor.end;
  }
  return header;
}

namespace {

// Runs of zeros in one tensor. Fed with its bytes in order.
class ZeroFinder {
 public:
  explicit ZeroFinder(const SafeTensor& tensor) : tensor_(tensor), at_(tensor.begin) {}

  void Feed(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size();) {
      if (bytes[i] == 0) {
        const size_t next = std::min(bytes.find_first_not_of('\0', i), bytes.size());
        if (run_ == 0) run_begin_ = at_ + i;
        run_ += next - i;
        i = next;
      } else {
        End();
        others_ = true;
        i = std::min(bytes.find('\0', i), bytes.size());
      }
    }
    at_ += bytes.size();
  }
  bool others() const { return others_; }  // anything but zeros
  std::optional<ZeroRun> Finish() {
    End();
    return others_ ? found_ : std::nullopt;
  }

 private:
  void End() {
    // The last bytes of a number may be zero by themselves, and so may the first ones of the next: up to one
    // element on either side is not counted.
    const uint64_t element = ElementBytes(tensor_.dtype);
    if (run_ >= kMinZeroRun && !found_.has_value() && !IsRows(element))
      found_ = {tensor_.name, run_begin_, run_};
    run_ = 0;
  }
  bool IsRows(uint64_t element) const {
    if (tensor_.row_bytes == 0 || tensor_.row_bytes == tensor_.end - tensor_.begin) return false;
    const uint64_t begin = run_begin_ - tensor_.begin;
    const uint64_t end = begin + run_;
    const uint64_t row = (begin + tensor_.row_bytes - 1) / tensor_.row_bytes * tensor_.row_bytes;
    const bool begins = row - begin < element;
    const bool ends = end % tensor_.row_bytes < element;
    return begins && ends;
  }

  const SafeTensor& tensor_;
  uint64_t at_;
  uint64_t run_ = 0;
  uint64_t run_begin_ = 0;
  bool others_ = false;
  std::optional<ZeroRun> found_;
};

}  // namespace

absl::StatusOr<std::vector<ZeroRun>> FindZeroRuns(File& file, const SafetensorsHeader& header,
                                                  size_t max_found) {
  std::vector<ZeroRun> found;
  std::string chunk(kChunkBytes, '\0');
  bool anything = false;
  for (const SafeTensor& tensor : header.tensors) {
    ZeroFinder finder(tensor);
    for (uint64_t at = tensor.begin; at < tensor.end;) {
      const size_t size = std::min<uint64_t>(tensor.end - at, chunk.size());
      if (absl::Status read = file.ReadAt(at, chunk.data(), size); !read.ok()) return read;
      finder.Feed({chunk.data(), size});
      at += size;
    }
    const std::optional<ZeroRun> run = finder.Finish();
    anything = anything || finder.others();
    if (run.has_value() && IsFloat(tensor.dtype)) found.push_back(*run);
    if (found.size() >= max_found) break;
  }
  // No tensor holds anything: space was made for the data, which never came.
  if (!anything && header.end - header.data >= kMinZeroRun) {
    found.push_back({header.tensors.front().name, header.data, header.end - header.data});
  }
  return found;
}

}  // namespace dgxrun::agent::ckpt
