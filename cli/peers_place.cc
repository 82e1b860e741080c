#include "cli/peers_place.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/local_jobs.h"
#include "cli/paths.h"

namespace dgxrun::cli {
namespace {

constexpr uint32_t kMaxSlots = 64;  // "nodes" of one job on one machine: tests
// A folder of this age, without a process and without a shim, is of a job that nobody will take up.
constexpr absl::Duration kStale = absl::Minutes(30);
constexpr size_t kHashDigits = 16;  // 64 bits: no two of a user's endpoints meet
// Ranks live for the orphan timeout after their process; killing takes some seconds more. After that nothing
// of the job is left that another process could take up.
constexpr absl::Duration kKillMargin = absl::Seconds(3);
constexpr absl::Duration kPulse = absl::Seconds(1);  // well below the shortest orphan timeout

std::string HashOf(const std::string& text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString({reinterpret_cast<char*>(digest), size}).substr(0, kHashDigits);
}

// Locked, and still the folder's own file; invalid: somebody has it.
UniqueFd TryLock(const std::string& folder) {
  const std::string path = folder + "/lock";
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid() || flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return UniqueFd();
  struct stat ours, there;
  const bool same =
      fstat(fd.get(), &ours) == 0 && stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino;
  return same ? std::move(fd) : UniqueFd();
}

bool ShimsLive(const std::string& folder) {
  for (const std::string& name : ListFolder(folder + "/shims")) {
    if (SomebodyListens(absl::StrCat(folder, "/shims/", name, "/shim.sock"))) return true;
  }
  return false;
}

absl::Time LastLived(const std::string& folder) {
  struct stat info;
  if (stat((folder + "/lock").c_str(), &info) != 0) return absl::InfinitePast();
  return absl::TimeFromTimespec(info.st_mtim);
}

void Empty(const std::string& folder) {
  std::error_code ignored;
  for (const std::string& name : ListFolder(folder)) {
    if (name != "lock") std::filesystem::remove_all(absl::StrCat(folder, "/", name), ignored);
  }
}

// Of processes that were killed, with other endpoints than ours.
void RemoveStalePlaces(const std::string& parent) {
  for (const std::string& name : ListFolder(parent)) {
    const std::string folder = absl::StrCat(parent, "/", name);
    if (ShimsLive(folder) || LastLived(folder) > absl::Now() - kStale) continue;
    const UniqueFd lock = TryLock(folder);
    std::error_code ignored;
    if (lock.valid()) std::filesystem::remove_all(folder, ignored);
  }
}

using Interfaces = std::unique_ptr<ifaddrs, void (*)(ifaddrs*)>;
Interfaces ReadInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) list = nullptr;
  return Interfaces(list, [](ifaddrs* l) {
    if (l != nullptr) freeifaddrs(l);
  });
}

std::string AddressText(const sockaddr* address) {
  char text[NI_MAXHOST] = "";
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  const std::string full = text;
  return full.substr(0, full.find('%'));  // without the interface of a link-local address
}

bool IsLoopback(const std::string& address) { return absl::StartsWith(address, "127.") || address == "::1"; }

}  // namespace

absl::StatusOr<PeersPlace> PeersPlace::Take(const std::string& run_dir, const PeersOptions& options,
                                            const std::string& host_name) {
  if (absl::Status made = MakePrivateFolder(run_dir); !made.ok()) return made;
  const std::string parent = run_dir + "/peers";
  if (absl::Status made = MakeFolders(parent, 0700); !made.ok()) return made;
  RemoveStalePlaces(parent);
  const std::string hash = HashOf(absl::StrCat(options.endpoint(), "\n", options.rdzv_id, "\n", host_name));
  std::optional<PeersPlace> best;
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) {
    const std::string folder = absl::StrCat(parent, "/", hash, "-", slot);
    struct stat info;
    const bool exists = stat(folder.c_str(), &info) == 0;
    if (!exists && best) break;  // the lowest free one is ours, and no later one holds anything
    if (absl::Status made = MakeFolders(folder, 0700); !made.ok()) return made;
    UniqueFd lock = TryLock(folder);
    if (!lock.valid()) continue;
    PeersPlace place(folder, slot, std::move(lock));
    place.found_living_ = exists && ShimsLive(folder);
    if (place.found_living_) {
      best = std::move(place);
      break;
    }
    if (!best) best = std::move(place);
    if (!exists) break;
  }
  if (!best)
    return absl::ResourceExhaustedError(absl::StrCat(parent, ": all ", kMaxSlots, " places are taken"));
  if (!best->found_living_ && LastLived(best->folder_) < absl::Now() - options.orphan_timeout - kKillMargin) {
    Empty(best->folder_);
  }
  if (absl::Status made = MakeFolders(best->shims(), 0700); !made.ok()) return made;
  return *std::move(best);
}

Pulse::Pulse(int fd) {
  thread_ = std::thread([this, fd] {
    pthread_setname_np(pthread_self(), "pulse");
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
      futimens(fd, nullptr);
      wake_.wait_for(lock, absl::ToChronoNanoseconds(kPulse));
    }
  });
}

Pulse::~Pulse() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void PeersPlace::Remove() {
  pulse_.reset();
  Empty(folder_);
  std::error_code ignored;
  std::filesystem::remove_all(folder_,
                              ignored);  // the lock's file last: who waits for it sees that it is gone
  const size_t slash = folder_.rfind('/');
  rmdir(folder_.substr(0, slash).c_str());  // if it was the last one
}

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> addresses;
  const Interfaces interfaces = ReadInterfaces();
  for (const ifaddrs* one = interfaces.get(); one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0)
      continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string text = AddressText(one->ifa_addr);
    if (!text.empty() && !absl::StartsWith(text, "fe80:")) addresses.push_back(text);
  }
  return addresses;
}

bool IsOwnHost(const std::string& host, std::string* why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    *why = gai_strerror(error);
    return false;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  const std::vector<std::string> own = OwnAddresses();
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const std::string text = AddressText(one->ai_addr);
    if (IsLoopback(text) || std::find(own.begin(), own.end(), text) != own.end()) return true;
  }
  return false;
}

std::string ListenAddress(const PeersOptions& options) {
  if (options.host == "localhost" || absl::StartsWith(options.host, "127.")) {
    return absl::StrCat(options.host == "localhost" ? "127.0.0.1" : options.host, ":", options.port);
  }
  if (options.host == "::1") return options.endpoint();
  // A kernel without IPv6 has no such sockets.
  const UniqueFd six(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  const bool usable = six.valid() && bind(six.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) == 0;
  return absl::StrCat(usable ? "[::]:" : "0.0.0.0:", options.port);
}

bool PortTaken(const PeersOptions& options) {
  const std::string listen_on = ListenAddress(options);
  std::string host = listen_on.substr(0, listen_on.rfind(':'));
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(options.port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  const UniqueFd probe(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  return (bind(probe.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(probe.get(), 1) != 0) &&
         errno == EADDRINUSE;
}

absl::StatusOr<UniqueFd> ListenForLife(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is too long for a socket; set DGXRUN_RUN_DIR"));
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  unlink(path.c_str());  // of a dead process; the folder is ours
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), 1) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", strerror(errno)));
  }
  return fd;
}

}  // namespace dgxrun::cli
