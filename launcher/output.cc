#include "launcher/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dgxrun {
namespace {

constexpr int kPipeBytes = 256 << 10;  // a burst of output does not wait for the writer's turn
constexpr size_t kCopyBytes = 64 << 10;
constexpr int kHungDisk = ETIMEDOUT;  // as the error of a stream
constexpr int kExitOwner = 71;  // EX_OSERR: could not become the owner; the files are not touched as root

std::string Reason(int error) {
  if (error == 0) return "the log writer was killed";
  return error == kHungDisk ? "the disk does not answer" : strerror(error);
}

// The writer's half of one stream.
class StreamCopy {
 public:
  // `to_file` false: all is taken and lost, since the disk hangs.
  StreamCopy(int pipe, const std::string& path, bool to_file, StreamCounters* counters)
      : pipe_(pipe), path_(path), to_file_(to_file), counters_(counters) {
    OpenFile();
  }

  // Returns false at the end of the stream.
  bool Copy(char* buffer) {
    counters_->busy.store(1);
    const ssize_t n = read(pipe_, buffer, kCopyBytes);
    const bool goes_on = n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n > 0) Write(buffer, static_cast<size_t>(n));
    if (!goes_on) WriteNote();
    counters_->busy.store(0);
    return goes_on;
  }

 private:
  void OpenFile() {
    if (path_.empty() || file_.valid()) return;
    if (!to_file_) {
      counters_->error = kHungDisk;
      return;
    }
    file_.Reset(open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file_.valid()) counters_->error = errno;
    // Of a file that a writer before this one made, it is not known how it ends.
    at_line_start_ = file_.valid() && lseek(file_.get(), 0, SEEK_END) == 0;
  }

  // What was taken before but is neither in the file nor told there: also what a writer before this one had
  // in hand when it was killed.
  uint64_t Untold() const { return counters_->taken - counters_->written - counters_->noted - held_; }

  void Write(const char* data, size_t size) {
    held_ = size;
    counters_->taken += size;
    OpenFile();
    const size_t done = path_.empty() ? size : WriteNote() ? WriteAll(data, size) : 0;
    counters_->written += done;
    counters_->dropped += size - done;
    held_ = 0;
  }

  // The bytes that the file took.
  size_t WriteAll(const char* data, size_t size) {
    size_t done = 0;
    while (done < size && file_.valid()) {
      const ssize_t n = write(file_.get(), data + done, size - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        counters_->error = n < 0 ? errno : EIO;
        break;
      }
      done += static_cast<size_t>(n);
    }
    if (done > 0) at_line_start_ = data[done - 1] == '\n';
    return done;
  }

  // Tells in the file what is missing, if anything is. False: the file does not take it (all of it) now.
  bool WriteNote() {
    if (path_.empty()) return true;
    if (note_.empty() && Untold() > 0) {
      const uint64_t missing = Untold();
      const int error = counters_->error.load();
      note_ = absl::StrCat(at_line_start_ ? "" : "\n", "[dgxrun: ", missing,
                           " bytes are missing here: ", Reason(error), "]\n");
      const size_t done = WriteAll(note_.data(), note_.size());
      if (done == 0) {
        note_.clear();  // next time it may be more
        return false;
      }
      counters_->noted += missing;
      note_.erase(0, done);
    } else if (!note_.empty()) {
      note_.erase(0, WriteAll(note_.data(), note_.size()));
    }
    return note_.empty() && (Untold() == 0 || WriteNote());
  }

  int pipe_;
  const std::string path_;
  const bool to_file_;
  StreamCounters* counters_;
  UniqueFd file_;
  bool at_line_start_ = false;
  std::string note_;   // what the file did not yet take of a note
  uint64_t held_ = 0;  // of taken: what is being written
};

bool BecomeOwner(const NodeSpawn& node, const std::vector<gid_t>& groups) {
  if (!node.set_owner) return true;
  return setgroups(groups.size(), groups.data()) == 0 && setresgid(node.gid, node.gid, node.gid) == 0 &&
         setresuid(node.uid, node.uid, node.uid) == 0;
}

}  // namespace

Output::Output(size_t ranks) : streams_(2 * ranks), rank_fds_(ranks) {}

Output::~Output() {
  if (shared_ != nullptr) munmap(shared_, shared_bytes_);
}

absl::StatusOr<std::unique_ptr<Output>> Output::Make(const NodeSpawn& node) {
  std::unique_ptr<Output> output(new Output(node.ranks.size()));
  constexpr size_t kAlign = alignof(StreamCounters);
  const size_t head = (sizeof(OutputShared) + kAlign - 1) / kAlign * kAlign;
  output->shared_bytes_ = head + sizeof(StreamCounters) * output->streams_.size();
  void* memory =
      mmap(nullptr, output->shared_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  output->shared_ = new (memory) OutputShared();
  output->counters_ = new (static_cast<char*>(memory) + head) StreamCounters[output->streams_.size()]();
  output->bell_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!output->bell_.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  for (size_t i = 0; i < node.ranks.size(); ++i) {
    if (node.inherit_terminal) {
      output->rank_fds_[i].out = STDOUT_FILENO;
    } else {
      if (absl::Status s = output->AddPipe(2 * i, node.ranks[i].stdout_path); !s.ok()) return s;
      output->rank_fds_[i].out = output->streams_[2 * i].write.get();
    }
    if (absl::Status s = output->AddPipe(2 * i + 1, node.ranks[i].stderr_path); !s.ok()) return s;
    output->rank_fds_[i].err = output->streams_[2 * i + 1].write.get();
  }
  return output;
}

absl::Status Output::AddPipe(size_t index, const std::string& path) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  streams_[index].read.Reset(ends[0]);
  streams_[index].write.Reset(ends[1]);
  streams_[index].path = path;
  fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);  // over the user's quota: the usual 64 KiB do
  return absl::OkStatus();
}

void Output::CloseWriteEnds() {
  for (Stream& stream : streams_) stream.write.Reset();
}

absl::Status Output::StartWriter(Sys& sys, const NodeSpawn& node, const std::vector<gid_t>& groups) {
  if (writers_ == kMaxWriters) return absl::ResourceExhaustedError("the log writer died too often");
  for (size_t i = 0; i < streams_.size(); ++i) {
    // What a dead one held is lost.
    counters_[i].busy.store(0);
  }
  absl::StatusOr<pid_t> pid = sys.Fork([&] { RunWriter(node, groups, abandoned_.empty()); });
  if (!pid.ok()) return pid.status();
  writer_ = *pid;
  ++writers_;
  return absl::OkStatus();
}

// Sockets, ports and pipes of the shim must not live on in the writer.
void Output::CloseAllButStreams() {
  std::vector<int> keep = {bell_.get()};
  for (const Stream& stream : streams_) keep.push_back(stream.read.get());
  std::vector<int> unwanted;
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return;
  while (dirent* entry = readdir(dir)) {
    const int fd = atoi(entry->d_name);
    const bool wanted = fd == dirfd(dir) || std::find(keep.begin(), keep.end(), fd) != keep.end();
    if (entry->d_name[0] != '.' && !wanted) unwanted.push_back(fd);
  }
  closedir(dir);
  for (int fd : unwanted) close(fd);
}

uint64_t Output::Progress() const {
  uint64_t steps = 0;
  for (size_t i = 0; i < streams_.size(); ++i)
    steps += counters_[i].taken + counters_[i].written + counters_[i].dropped;
  return steps;
}

bool Output::HasWork() const {
  for (size_t i = 0; i < streams_.size(); ++i) {
    int waiting = 0;
    if (!streams_[i].read.valid()) continue;
    if (ioctl(streams_[i].read.get(), FIONREAD, &waiting) == 0 && waiting > 0) return true;
    if (counters_[i].busy.load() != 0) return true;
  }
  return false;
}

void Output::AbandonWriter() {
  abandoned_.push_back(writer_);
  writer_ = 0;
}

bool Output::AbandonedEnded(pid_t pid) { return std::erase(abandoned_, pid) > 0; }

std::vector<pid_t> Output::WriterPids() const {
  std::vector<pid_t> pids = abandoned_;
  pids.push_back(writer_);
  return pids;
}

void Output::RunWriter(const NodeSpawn& node, const std::vector<gid_t>& groups, bool to_files) {
  prctl(PR_SET_NAME, "dgxrun-writer");
  CloseAllButStreams();
  if (!BecomeOwner(node, groups)) {
    for (size_t i = 0; i < streams_.size(); ++i) counters_[i].error = EPERM;
    _exit(kExitOwner);
  }
  std::vector<std::unique_ptr<StreamCopy>> copies;
  std::vector<pollfd> polls;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (!streams_[i].read.valid()) continue;
    copies.push_back(
        std::make_unique<StreamCopy>(streams_[i].read.get(), streams_[i].path, to_files, &counters_[i]));
    polls.push_back(pollfd{streams_[i].read.get(), POLLIN, 0});
  }
  const std::unique_ptr<char[]> buffer(new char[kCopyBytes]);
  size_t open_streams = polls.size();
  uint64_t ring_at = 1;
  while (open_streams > 0) {
    if (poll(polls.data(), polls.size(), -1) < 0) continue;
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].fd < 0 || polls[i].revents == 0) continue;
      if (copies[i]->Copy(buffer.get())) continue;
      polls[i].fd = -1;  // poll skips it
      --open_streams;
    }
    uint64_t dropped = 0;
    for (size_t i = 0; i < streams_.size(); ++i) dropped += counters_[i].dropped.load();
    if (dropped >= ring_at || shared_->wanted.load() != 0) eventfd_write(bell_.get(), 1);
    while (dropped >= ring_at) ring_at *= kLossStep;
  }
  _exit(0);
}

bool Output::Drained(size_t rank_index) {
  shared_->wanted.store(1);
  for (size_t i : {2 * rank_index, 2 * rank_index + 1}) {
    if (!streams_[i].read.valid()) continue;
    int waiting = 0;
    // First the pipe, then the flag: bytes gone from the pipe were taken with the flag up.
    if (ioctl(streams_[i].read.get(), FIONREAD, &waiting) == 0 && waiting > 0) return false;
    if (counters_[i].busy.load() != 0) return false;
  }
  return true;
}

void Output::ClearBell() {
  eventfd_t count;
  eventfd_read(bell_.get(), &count);
}

std::vector<std::string> Output::Problems() const {
  std::vector<std::string> problems;
  if (died_ > 0) problems.push_back(absl::StrCat("the log writer died and was replaced ", died_, " times"));
  if (hung_ > 0) problems.push_back(absl::StrCat("the log writer hung and was replaced ", hung_, " times"));
  return problems;
}

v1::OutputLost Output::Lost() const {
  v1::OutputLost lost;
  int files = 0;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const StreamCounters& counters = counters_[i];
    const uint64_t bytes =
        writer_ == 0 ? counters.taken.load() - counters.written.load() : counters.dropped.load();
    if (bytes == 0) continue;
    lost.set_bytes(lost.bytes() + bytes);
    if (++files > 1) continue;
    const int error = counters.error.load();
    lost.set_reason(absl::StrCat(streams_[i].path, ": ", Reason(error)));
  }
  if (files > 1) absl::StrAppend(lost.mutable_reason(), " (and ", files - 1, " more files)");
  return lost;
}

}  // namespace dgxrun
