// The ranks' output, from their pipes to files, without the shim ever touching a disk.
//
// A writer, a child of the shim, reads the pipes and appends to the files as the job's owner. If the disk
// hangs, the writer hangs; the shim goes on reaping, fencing and killing. The shim keeps copies of the
// pipes' read ends, so a writer that dies or hangs is replaced and no rank ever sees SIGPIPE.
//
// One that hangs is killed. Where not even that ends it (it waits for a disk in the kernel), it is abandoned:
// the next one opens no file, takes what the ranks write and counts it as lost, so that they run on; when the
// abandoned one is gone at last, the disk answers again, and a writer that writes takes its turn.
//
// What the disk does not take (it is full, the folder is gone) is dropped and counted: a disk must not stop
// the ranks. When it takes bytes again, a line of ours in the file says how many are missing before what
// follows, so that every reader of the file sees the gap where it is.
//
// Each stream has counters in memory shared with the writer: bytes taken from the pipe and bytes written.
// The difference, once a writer is dead or an error was seen, is what was lost.
#ifndef DGXRUN_LAUNCHER_OUTPUT_H_
#define DGXRUN_LAUNCHER_OUTPUT_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "launcher/base/sys.h"
#include "launcher/base/unique_fd.h"
#include "launcher/plan.h"
#include "launcher/spawn.h"

namespace dgxrun {

// In shared memory; lock-free atomics only.
struct StreamCounters {
  std::atomic<uint64_t> taken;
  std::atomic<uint64_t> written;
  std::atomic<uint64_t> dropped;  // of taken: known to be lost
  std::atomic<uint64_t> noted;    // of those: told by a line in the file
  std::atomic<int32_t> error;     // errno of the last open or write that failed
  std::atomic<uint32_t> busy;     // the writer holds bytes that are in neither the pipe nor the file
};
struct OutputShared {
  std::atomic<uint32_t> wanted;  // somebody waits for a stream to be drained: ring the bell
};

class Output {
 public:
  // A writer that dies again and again is killed by somebody; the ranks then block on full pipes.
  static constexpr int kMaxWriters = 16;

  static absl::StatusOr<std::unique_ptr<Output>> Make(const NodeSpawn& node);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Write ends for the ranks; closed in this process by CloseWriteEnds once all are forked.
  const std::vector<RankFds>& rank_fds() const { return rank_fds_; }
  void CloseWriteEnds();

  // Forks a writer. Also after one died or was abandoned. ResourceExhausted after kMaxWriters.
  absl::Status StartWriter(Sys& sys, const NodeSpawn& node, const std::vector<gid_t>& groups);
  pid_t writer() const { return writer_; }  // 0: none
  void WriterEnded() { writer_ = 0; }
  void WriterDied() { ++died_; }  // for Problems(): not by our hand
  void WriterHung() { ++hung_; }

  // Changes with every step of a writer; and whether there is anything for it to do. Work and no step: it
  // hangs.
  uint64_t Progress() const;
  bool HasWork() const;

  void AbandonWriter();
  // A child of ours has ended. True: it was an abandoned writer; when it was the last, writer() should be
  // replaced.
  bool AbandonedEnded(pid_t pid);
  bool HasAbandoned() const { return !abandoned_.empty(); }
  // All writers that live: they are not the ranks'.
  std::vector<pid_t> WriterPids() const;

  // Nothing of this rank is on its way between pipe and file. When false: `bell` becomes readable at the
  // next progress.
  bool Drained(size_t rank_index);
  int bell() const { return bell_.get(); }
  void ClearBell();

  // Bytes that are in no file, and the first file concerned with the reason. Each stream's loss is known as
  // soon as it happens; what a killed writer had in hand only counts once it is gone (writer() == 0).
  // bytes 0: nothing was lost. The bell rings when it begins, and each time kLossStep times as much is lost.
  v1::OutputLost Lost() const;
  static constexpr uint64_t kLossStep = 8;  // some 12 events from the first byte to a terabyte

  // One line for a person for each other thing that went wrong.
  std::vector<std::string> Problems() const;

 private:
  struct Stream {
    UniqueFd read, write;
    std::string path;
  };
  explicit Output(size_t ranks);
  void RunWriter(const NodeSpawn& node, const std::vector<gid_t>& groups, bool to_files);
  void CloseAllButStreams();
  absl::Status AddPipe(size_t index, const std::string& path);

  std::vector<Stream> streams_;  // stdout of rank i at 2i, stderr at 2i+1
  std::vector<RankFds> rank_fds_;
  OutputShared* shared_ = nullptr;
  StreamCounters* counters_ = nullptr;
  size_t shared_bytes_ = 0;
  UniqueFd bell_;
  pid_t writer_ = 0;
  std::vector<pid_t> abandoned_;
  int writers_ = 0, died_ = 0, hung_ = 0;
};

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_OUTPUT_H_
