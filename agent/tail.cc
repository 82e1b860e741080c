#include "agent/tail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/owner_files.h"

namespace dgxrun::agent {
namespace {

using SourceId = std::pair<uint32_t, v1::Stream>;  // rank, stream

struct Source {
  UniqueFd fd;
  uint64_t offset = 0;
  bool queued = false;
  bool done = false;
};

struct Tail {
  v1::TailRequest request;
  AttemptKey key;
  std::unique_ptr<TailSink> sink;
  bool ended = false;    // no more will be written than the files hold
  bool writing = false;  // a chunk is on its way
  bool said = false;     // at least one chunk was sent
  bool opened = false;   // the folder was there
  int watch = -1;        // inotify; -1: none
  uid_t folder_owner = 0;
  std::map<SourceId, Source> sources;
  std::deque<SourceId> ready;
};

std::string FileName(const SourceId& id) {
  return absl::StrCat("rank_", id.first, id.second == v1::STREAM_STDOUT ? ".out" : ".err");
}

std::optional<SourceId> ParseFileName(std::string_view name) {
  constexpr std::string_view kPrefix = "rank_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  uint32_t rank = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, rank);
  if (error != std::errc()) return std::nullopt;
  const std::string_view ending(rest, static_cast<size_t>(end - rest));
  if (ending == ".out") return SourceId{rank, v1::STREAM_STDOUT};
  if (ending == ".err") return SourceId{rank, v1::STREAM_STDERR};
  return std::nullopt;
}

class TailThread final : public TailServer {
 public:
  TailThread(std::string node_name, std::string log_root, MakeTailSink make_sink)
      : node_name_(std::move(node_name)),
        log_root_(std::move(log_root)),
        make_sink_(std::move(make_sink)),
        inbox_(std::make_shared<LoopInbox>(&loop_)),
        inotify_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    if (inotify_.valid()) loop_.Watch(inotify_.get(), EPOLLIN, [this](uint32_t) { OnInotify(); });
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "dgx-tail");
      loop_.Run();
    });
  }
  ~TailThread() override {
    loop_.Quit();
    thread_.join();
    inbox_->Close();
  }

  void Start(v1::TailRequest request, bool ended) override {
    loop_.Post([this, request = std::move(request), ended] { DoStart(request, ended); });
  }
  void Cancel(uint64_t tail_id) override {
    loop_.Post([this, tail_id] { Remove(tail_id); });
  }
  void CancelAll() override {
    loop_.Post([this] {
      while (!tails_.empty()) Remove(tails_.begin()->first);
    });
  }
  void AttemptStarted(const AttemptKey& key) override {
    loop_.Post([this, key] { ForAttempt(key, [this](Tail* tail) { Open(tail); }); });
  }
  void AttemptEnded(const AttemptKey& key) override {
    loop_.Post([this, key] {
      ForAttempt(key, [this](Tail* tail) {
        tail->ended = true;
        Open(tail);
        for (auto& [id, source] : tail->sources) Queue(tail, id);
      });
    });
  }

 private:
  template <class F>
  void ForAttempt(const AttemptKey& key, F action) {
    std::vector<uint64_t> ids;  // a tail may end meanwhile
    for (const auto& [id, tail] : tails_) {
      if (tail->key == key) ids.push_back(id);
    }
    for (uint64_t id : ids) {
      auto it = tails_.find(id);
      if (it == tails_.end()) continue;
      action(it->second.get());
      Pump(id);
    }
  }

  void DoStart(const v1::TailRequest& request, bool ended);
  void Open(Tail* tail);
  void AddSource(Tail* tail, const SourceId& id);
  void AddFile(Tail* tail, const SourceId& id);
  void Queue(Tail* tail, const SourceId& id);
  void Pump(uint64_t id);
  bool Next(Tail* tail, v1::OutputChunk* chunk);
  bool ReadChunk(Tail* tail, const SourceId& id, Source* source, v1::OutputChunk* chunk);
  void Remove(uint64_t id);
  void OnInotify();
  std::string Folder(const Tail& tail) const {
    return absl::StrCat(tail.key.job.str(), "/attempt_", tail.key.attempt.value());
  }

  const std::string node_name_;
  const std::string log_root_;
  const MakeTailSink make_sink_;
  EventLoop loop_;
  const std::shared_ptr<LoopInbox> inbox_;
  UniqueFd inotify_;
  std::map<uint64_t, std::unique_ptr<Tail>> tails_;
  std::thread thread_;
};

void TailThread::DoStart(const v1::TailRequest& request, bool ended) {
  if (tails_.contains(request.tail_id())) return;  // the same request again
  auto tail = std::make_unique<Tail>();
  tail->request = request;
  tail->key = {JobId(request.job_id()), AttemptNo(request.attempt())};
  tail->ended = ended || !request.follow();
  tail->sink = make_sink_(inbox_);
  for (uint32_t rank : request.ranks()) {
    for (v1::Stream stream : {v1::STREAM_STDOUT, v1::STREAM_STDERR}) AddSource(tail.get(), {rank, stream});
  }
  Tail* started = tail.get();
  tails_[request.tail_id()] = std::move(tail);
  // Over the limit it ends at once, with an error (see Next).
  if (tails_.size() <= kMaxTails) Open(started);
  Pump(request.tail_id());
}

// Watches first, then lists, so that no file is missed. Opened as the agent, not as the owner: the folder was
// made by the agent, no link below the log root is followed, and only regular files of the folder's owner are
// read.
void TailThread::Open(Tail* tail) {
  if (tail->opened) return;
  absl::StatusOr<UniqueFd> folder = OpenBeneath(log_root_, Folder(*tail), O_RDONLY | O_DIRECTORY);
  struct stat st;
  if (!folder.ok() || fstat(folder->get(), &st) != 0) return;
  tail->opened = true;
  tail->folder_owner = st.st_uid;
  const std::string self = absl::StrCat("/proc/self/fd/", folder->get());
  tail->watch =
      inotify_add_watch(inotify_.get(), self.c_str(), IN_CREATE | IN_MOVED_TO | IN_MODIFY | IN_ONLYDIR);
  if (tail->watch < 0) tail->ended = true;  // out of watches: what is there now is read, and is all
  DIR* dir = fdopendir(folder->Release());
  while (const dirent* entry = readdir(dir)) {
    if (const std::optional<SourceId> id = ParseFileName(entry->d_name)) AddFile(tail, *id);
  }
  closedir(dir);
  for (auto& [id, source] : tail->sources) Queue(tail, id);
}

void TailThread::AddSource(Tail* tail, const SourceId& id) {
  const auto [it, added] = tail->sources.try_emplace(id);
  for (const v1::LogPosition& place : tail->request.from()) {
    if (!added || place.rank() != id.first || place.stream() != id.second) continue;
    it->second.offset = std::min<uint64_t>(place.offset(), std::numeric_limits<off_t>::max());
  }
}

void TailThread::AddFile(Tail* tail, const SourceId& id) {
  if (tail->request.ranks().empty()) AddSource(tail, id);
  Queue(tail, id);
}

void TailThread::Queue(Tail* tail, const SourceId& id) {
  auto it = tail->sources.find(id);
  if (it == tail->sources.end() || it->second.queued || it->second.done) return;
  it->second.queued = true;
  tail->ready.push_back(id);
}

void TailThread::Pump(uint64_t id) {
  auto it = tails_.find(id);
  if (it == tails_.end() || it->second->writing) return;
  Tail* tail = it->second.get();
  v1::OutputChunk chunk;
  if (!Next(tail, &chunk)) {
    if (!tail->ended) return;  // until a file grows
    tail->sink->Finish();
    Remove(id);
    return;
  }
  chunk.set_tail_id(id);
  chunk.set_job_id(tail->request.job_id());
  chunk.set_attempt(tail->request.attempt());
  chunk.set_node(node_name_);
  tail->writing = true;
  tail->said = true;
  tail->sink->Write(std::move(chunk), [this, id](bool ok) {
    auto found = tails_.find(id);
    if (found == tails_.end()) return;
    found->second->writing = false;
    if (!ok) return Remove(id);
    Pump(id);
  });
}

// The next chunk to send; false: there is none now, or (when the tail has ended) none at all any more.
bool TailThread::Next(Tail* tail, v1::OutputChunk* chunk) {
  while (!tail->ready.empty()) {
    const SourceId id = tail->ready.front();
    tail->ready.pop_front();
    Source& source = tail->sources[id];
    source.queued = false;
    if (ReadChunk(tail, id, &source, chunk)) return true;
  }
  if (!tail->ended || tail->said) return false;
  chunk->set_end(true);
  if (tails_.size() > kMaxTails) {
    chunk->set_error(absl::StrCat("node ", node_name_, ": more than ", kMaxTails, " readers of logs"));
  } else if (!tail->opened) {
    chunk->set_no_logs(true);
    chunk->set_error(absl::StrCat("node ", node_name_, " has no logs of ", tail->key.job.str(), " attempt ",
                                  tail->key.attempt.value()));
  }
  return true;
}

bool TailThread::ReadChunk(Tail* tail, const SourceId& id, Source* source, v1::OutputChunk* chunk) {
  if (source->done) return false;
  chunk->Clear();
  chunk->set_rank(id.first);
  chunk->set_stream(id.second);
  chunk->set_offset(source->offset);
  const std::string name = absl::StrCat(Folder(*tail), "/", FileName(id));
  ssize_t n = 0;
  if (!source->fd.valid()) {
    absl::StatusOr<UniqueFd> fd = OpenBeneath(log_root_, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd.ok() && fstat(fd->get(), &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == tail->folder_owner) {
      source->fd = *std::move(fd);
    } else if (fd.ok() || !absl::IsNotFound(fd.status())) {
      source->done = true;
      chunk->set_error(fd.ok() ? absl::StrCat(name, ": not a regular file of the owner")
                               : std::string(fd.status().message()));
      chunk->set_end(true);
      return true;
    }
  }
  if (source->fd.valid()) {
    std::string* data = chunk->mutable_data();
    data->resize(kTailChunkBytes);
    n = pread(source->fd.get(), data->data(), data->size(), static_cast<off_t>(source->offset));
    data->resize(n > 0 ? static_cast<size_t>(n) : 0);
  }
  if (n > 0) {
    source->offset += static_cast<uint64_t>(n);
    Queue(tail, id);  // there may be more
    return true;
  }
  if (n < 0) chunk->set_error(absl::StrCat(name, ": ", strerror(errno)));
  if (n == 0 && !tail->ended) return false;
  source->done = true;
  chunk->set_end(true);
  return true;
}

void TailThread::Remove(uint64_t id) {
  auto it = tails_.find(id);
  if (it == tails_.end()) return;
  const int watch = it->second->watch;
  tails_.erase(it);
  for (const auto& [other, tail] : tails_) {
    if (tail->watch == watch) return;  // one watch serves all tails of a folder
  }
  if (watch >= 0) inotify_rm_watch(inotify_.get(), watch);
}

void TailThread::OnInotify() {
  alignas(inotify_event) std::array<char, 16 * 1024> buffer;
  const ssize_t n = read(inotify_.get(), buffer.data(), buffer.size());
  std::map<uint64_t, bool> touched;
  for (ssize_t at = 0; at + static_cast<ssize_t>(sizeof(inotify_event)) <= n;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    for (auto& [id, tail] : tails_) {
      if ((event->mask & IN_Q_OVERFLOW) != 0) {  // events were lost: look at everything
        tail->opened = false;
        Open(tail.get());
        touched[id] = true;
      } else if (tail->watch == event->wd && event->len > 0) {
        if (const std::optional<SourceId> source = ParseFileName(event->name)) AddFile(tail.get(), *source);
        touched[id] = true;
      }
    }
  }
  for (const auto& [id, unused] : touched) Pump(id);
}

}  // namespace

std::unique_ptr<TailServer> TailServer::Create(std::string node_name, std::string log_root,
                                               MakeTailSink make_sink) {
  return std::make_unique<TailThread>(std::move(node_name), std::move(log_root), std::move(make_sink));
}

}  // namespace dgxrun::agent
