#include "controller/wal_check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {
namespace {

// https://www.sqlite.org/fileformat2.html#the_write_ahead_log; numbers are big-endian.
constexpr size_t kHeaderBytes = 32;
constexpr size_t kFrameHeaderBytes = 24;
constexpr uint32_t kMagic = 0x377f0682;  // with the lowest bit: checksums over big-endian words
constexpr size_t kMinPage = 512, kMaxPage = 65536;
// Some thousand records; the checkpoint after 1000 pages keeps it far below.
constexpr off_t kMaxWalBytes = 1 << 30;

uint32_t Word(std::string_view data, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(data[at + i]);
  return value;
}

struct Sum {
  uint32_t a = 0, b = 0;
  bool operator==(const Sum& other) const { return a == other.a && b == other.b; }
};

Sum Add(Sum sum, std::string_view data, bool big_endian) {
  const auto word = [&](size_t at) {
    const uint32_t value = Word(data, at);
    return big_endian ? value : __builtin_bswap32(value);
  };
  for (size_t at = 0; at + 8 <= data.size(); at += 8) {
    sum.a += word(at) + sum.b;
    sum.b += word(at + 4) + sum.a;
  }
  return sum;
}

class Wal {
 public:
  explicit Wal(std::string_view data) : data_(data) {
    big_endian_ = (Word(data, 0) & 1) != 0;
    page_ = Word(data, 8);
    header_ok_ = (Word(data, 0) & ~1U) == kMagic && page_ >= kMinPage && page_ <= kMaxPage &&
                 (page_ & (page_ - 1)) == 0 &&
                 Add({}, data.substr(0, 24), big_endian_) == Sum{Word(data, 24), Word(data, 28)};
  }

  bool header_ok() const { return header_ok_; }
  size_t frame_bytes() const { return kFrameHeaderBytes + page_; }
  size_t frames() const { return (data_.size() - kHeaderBytes) / frame_bytes(); }
  size_t Offset(size_t frame) const { return kHeaderBytes + frame * frame_bytes(); }
  std::string_view Frame(size_t frame) const { return data_.substr(Offset(frame), frame_bytes()); }
  bool Commits(size_t frame) const { return Word(Frame(frame), 4) != 0; }
  // Belongs to what was written since the file was begun anew.
  bool OfThisGeneration(size_t frame) const { return Frame(frame).substr(8, 8) == data_.substr(16, 8); }
  // The same with one of its two numbers damaged: both change when the file is begun anew.
  bool Resembles(size_t frame) const {
    const std::string_view salts = Frame(frame).substr(8, 8);
    return salts.substr(0, 4) == data_.substr(16, 4) || salts.substr(4, 4) == data_.substr(20, 4);
  }
  // Continues the frame before it, as that one says it ends itself.
  bool Follows(size_t frame) const {
    const std::string_view before = frame == 0 ? data_.substr(24, 8) : Frame(frame - 1).substr(16, 8);
    const std::string_view mine = Frame(frame);
    const Sum seed{Word(before, 0), Word(before, 4)};
    const Sum sum =
        Add(Add(seed, mine.substr(0, 8), big_endian_), mine.substr(kFrameHeaderBytes), big_endian_);
    return OfThisGeneration(frame) && sum == Sum{Word(mine, 16), Word(mine, 20)};
  }
  // Whether frames of a transaction after that of `bad` are there. A run without a break only: what an
  // earlier commit that failed has left further on is no part of the log.
  bool LaterTransactionAfter(size_t bad) const {
    size_t next = bad + 1;
    bool after_commit = Resembles(bad) && Commits(bad);
    // If it is the bad frame's own checksum that is damaged, the one after it does not follow it either.
    if (next < frames() && OfThisGeneration(next) && !Follows(next)) {
      after_commit = after_commit || Commits(next);
      if (++next >= frames() || !Follows(next)) return false;
    }
    for (; next < frames() && Follows(next); ++next) {
      if (after_commit) return true;
      after_commit = Commits(next);
    }
    return false;
  }

 private:
  const std::string_view data_;
  bool big_endian_ = false;
  size_t page_ = 0;
  bool header_ok_ = false;
};

absl::StatusOr<std::string> ReadWal(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid() && errno == ENOENT) return std::string();
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be read: ", strerror(errno)));
  }
  if (info.st_size > kMaxWalBytes) {
    return absl::DataLossError(absl::StrCat(path, ": is larger than dgxrun ever makes it"));
  }
  std::string data(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n = read(fd.get(), data.data() + done, data.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::UnavailableError(absl::StrCat(path, ": cannot be read: ", strerror(errno)));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  data.resize(done);
  return data;
}

absl::Status Damaged(const std::string& path, size_t offset) {
  return absl::DataLossError(absl::StrCat(path, ": is damaged at offset ", offset,
                                          ", and confirmed records follow; restore log.db and log.db-wal "
                                          "from a backup"));
}

}  // namespace

absl::StatusOr<TornTail> CheckWal(const std::string& path) {
  absl::StatusOr<std::string> data = ReadWal(path);
  if (!data.ok()) return data.status();
  if (data->empty()) return TornTail{};
  if (data->size() <= kHeaderBytes) return TornTail{};  // begun, nothing in it
  const Wal wal(*data);
  // The header is 32 bytes in one sector, and flushed before any frame: a crash does not tear it.
  if (!wal.header_ok()) return Damaged(path, 0);
  size_t good = 0, kept = 0;
  while (good < wal.frames() && wal.Follows(good)) {
    if (wal.Commits(good++)) kept = good;
  }
  if (good < wal.frames() && wal.LaterTransactionAfter(good)) return Damaged(path, wal.Offset(good));
  // What stands there of the file's earlier life is no tail.
  size_t end = good;
  while (end < wal.frames() && wal.Resembles(end)) ++end;
  size_t end_bytes = wal.Offset(end);
  const std::string_view rest = std::string_view(*data).substr(end_bytes);
  const bool part = rest.size() >= 16 && rest.size() < wal.frame_bytes() &&
                    rest.substr(8, 8) == std::string_view(*data).substr(16, 8);
  if (part) end_bytes = data->size();
  if (end_bytes == wal.Offset(kept)) return TornTail{};
  return TornTail{wal.Offset(kept), end_bytes - wal.Offset(kept)};
}

}  // namespace dgxrun
