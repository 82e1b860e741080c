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
constexpr int kExitOwner = 71;  // EX_OSERR: could not become the owner; the files are not touched as root

// The writer's half of one stream.
class StreamCopy {
 public:
  StreamCopy(int pipe, const std::string& path, StreamCounters* counters)
      : pipe_(pipe), path_(path), counters_(counters) {
    OpenFile();
  }

  // Returns false at the end of the stream.
  bool Copy(char* buffer) {
    counters_->busy.store(1);
    const ssize_t n = read(pipe_, buffer, kCopyBytes);
    if (n > 0) {
      counters_->taken += static_cast<uint64_t>(n);
      Write(buffer, static_cast<size_t>(n));
    }
    counters_->busy.store(0);
    return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
  }

 private:
  void OpenFile() {
    if (path_.empty() || file_.valid()) return;
    file_.Reset(open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file_.valid()) counters_->error = errno;
  }

  // What the disk does not take is dropped and counted: a full disk must not stop the ranks.
  void Write(const char* data, size_t size) {
    OpenFile();
    while (size > 0 && file_.valid()) {
      const ssize_t n = write(file_.get(), data, size);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        counters_->error = n < 0 ? errno : EIO;
        return;
      }
      counters_->written += static_cast<uint64_t>(n);
      data += n;
      size -= static_cast<size_t>(n);
    }
  }

  int pipe_;
  const std::string path_;
  StreamCounters* counters_;
  UniqueFd file_;
};

bool BecomeOwner(const NodeSpawn& node, const std::vector<gid_t>& groups) {
  if (!node.set_owner) return true;
  return setgroups(groups.size(), groups.data()) == 0 && setresgid(node.gid, node.gid, node.gid) == 0 &&
         setresuid(node.uid, node.uid, node.uid) == 0;
}

}  // namespace

Output::Output(size_t ranks) : rank_count_(ranks), streams_(2 * ranks), rank_fds_(ranks) {}

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
  absl::StatusOr<pid_t> pid = sys.Fork([&] { RunWriter(node, groups); });
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

void Output::RunWriter(const NodeSpawn& node, const std::vector<gid_t>& groups) {
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
    copies.push_back(std::make_unique<StreamCopy>(streams_[i].read.get(), streams_[i].path, &counters_[i]));
    polls.push_back(pollfd{streams_[i].read.get(), POLLIN, 0});
  }
  const std::unique_ptr<char[]> buffer(new char[kCopyBytes]);
  size_t open_streams = polls.size();
  while (open_streams > 0) {
    if (poll(polls.data(), polls.size(), -1) < 0) continue;
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].fd < 0 || polls[i].revents == 0) continue;
      if (copies[i]->Copy(buffer.get())) continue;
      polls[i].fd = -1;  // poll skips it
      --open_streams;
    }
    if (shared_->wanted.load() != 0) eventfd_write(bell_.get(), 1);
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
  if (writers_ > 1) {
    problems.push_back(absl::StrCat("the log writer died and was replaced ", writers_ - 1, " times"));
  }
  uint64_t lost = 0;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].path.empty()) continue;
    const int error = counters_[i].error.load();
    if (error != 0) problems.push_back(absl::StrCat(streams_[i].path, ": ", strerror(error)));
    lost += counters_[i].taken.load() - counters_[i].written.load();
  }
  if (lost > 0) problems.push_back(absl::StrCat(lost, " bytes of output were lost"));
  return problems;
}

}  // namespace dgxrun
