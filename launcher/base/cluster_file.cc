#include "launcher/base/cluster_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/base/nearest_word.h"
#include "proto/ids.h"

// The parser is compiled into this file, without exceptions: the distribution's shared library has them.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#undef TOML_EXCEPTIONS
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
// Its assertions are about what a user may type ("[=" ends 3.3); the code after them reports it as an error.
#define TOML_ASSERT(expr) static_cast<void>(0)
#include "toml++/toml.h"

namespace dgxrun {
namespace {

constexpr int kMaxDeclaredGpus = 64;                 // more than any node has; catches a typing error
constexpr int64_t kMinHeartbeatMs = 10;              // below this the heartbeats of a node are its main load
constexpr int64_t kMaxTimeoutMs = 86400000;          // a day; longer is a typing error
constexpr int64_t kMaxOrphanMs = 7 * kMaxTimeoutMs;  // over a weekend and longer nobody looks
// A node's heartbeat is answered, the next one says so, and only the one after it proves that this one was
// heard (controller/core/committee.h): with less, no committee would ever count as heard, and no node would
// be fenced.
constexpr uint32_t kHeartbeatsPerLease = 4;
constexpr size_t kMaxSocketPath = 107;       // bytes of sockaddr_un.sun_path, without the NUL
constexpr uint64_t kMaxFileBytes = 1 << 20;  // a cluster file is some lines; a device or a log is a mistake

bool IsHost(std::string_view text) {
  return !text.empty() && text.find_first_of(" /\t\"'") == std::string_view::npos;
}

// A port of 0 is one that the kernel chooses: to listen on, not to dial.
bool IsHostPort(std::string_view text, uint32_t lowest_port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view host = text.substr(0, colon);
  if (!IsHost(host)) return false;
  if (host.find(':') != std::string_view::npos && (host.front() != '[' || host.back() != ']')) return false;
  uint32_t port = 0;
  return absl::SimpleAtoi(absl::string_view(text.data() + colon + 1, text.size() - colon - 1), &port) &&
         port >= lowest_port && port <= 65535;
}

// Walks a parsed file. The first error sticks; later calls do nothing.
class Reader {
 public:
  Reader(const toml::table& root, const std::string& path)
      : root_(root), path_(path), folder_(std::filesystem::path(path).parent_path()) {}

  const absl::Status& status() const { return status_; }

  void Fail(const toml::source_region& where, std::string_view message) {
    if (!status_.ok()) return;
    status_ =
        absl::InvalidArgumentError(absl::StrCat(path_, ":", where.begin.line, ":", where.begin.column, ": ",
                                                absl::string_view(message.data(), message.size())));
  }

  // The value's node, for a message that points at it; null: it is not given.
  static const toml::node* NodeOf(const toml::table* table, const char* key) {
    return table == nullptr ? nullptr : table->get(key);
  }

  // The table of a section, or null. Every key of it must be one of `keys`, if any are given.
  const toml::table* Section(const char* name, std::initializer_list<const char*> keys) {
    const toml::node* node = root_.get(name);
    if (node == nullptr) return nullptr;
    const toml::table* table = node->as_table();
    if (table == nullptr) {
      Fail(node->source(), absl::StrCat("[", name, "] must be a table"));
      return nullptr;
    }
    if (keys.size() > 0) CheckKeys(*table, keys, absl::StrCat("[", name, "]"));
    return table;
  }

  // Of several unknown keys the first in the file is told.
  void CheckKeys(const toml::table& table, const std::vector<const char*>& keys, const std::string& where) {
    const toml::key* first = nullptr;
    for (const auto& [key, value] : table) {
      if (std::find(keys.begin(), keys.end(), key.str()) != keys.end()) continue;
      if (first == nullptr || key.source().begin < first->source().begin) first = &key;
    }
    if (first == nullptr) return;
    const std::string nearest = NearestWord(first->str(), {keys.begin(), keys.end()});
    Fail(first->source(),
         absl::StrCat("unknown key \"", std::string(first->str()), "\" in ", where,
                      nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?"),
                      " (keys: ", absl::StrJoin(keys, ", "), ")"));
  }

  void String(const toml::table* table, const char* key, std::string* out) {
    const toml::node* node = Get(table, key);
    if (node == nullptr) return;
    if (const auto* value = node->as_string()) {
      *out = value->get();
    } else {
      Fail(node->source(), absl::StrCat("\"", key, "\" must be a string"));
    }
  }
  // A relative path starts at the file's own folder.
  void Path(const toml::table* table, const char* key, std::string* out) {
    const toml::node* node = Get(table, key);
    if (node == nullptr) return;
    String(table, key, out);
    if (!status_.ok()) return;
    if (out->empty())
      return Fail(node->source(), absl::StrCat("\"", key, "\" is empty; leave it out instead"));
    if (out->front() == '~') {
      return Fail(node->source(), absl::StrCat("\"", key, "\": ~ is not expanded; write the path"));
    }
    if (out->front() != '/') *out = (folder_ / *out).lexically_normal().string();
  }
  void Socket(const toml::table* table, const char* key, std::string* out) {
    Path(table, key, out);
    if (status_.ok() && out->size() > kMaxSocketPath) FailSocket(*Get(table, key), key, out->size());
  }
  void Host(const toml::table* table, const char* key, std::string* out) {
    const toml::node* node = Get(table, key);
    if (node == nullptr) return;
    String(table, key, out);
    if (status_.ok() && !IsHost(*out)) {
      Fail(node->source(),
           absl::StrCat("\"", key, "\" must be an address or a host name, not \"", *out, "\""));
    }
  }
  void Name(const toml::table* table, const char* key, std::string* out) {
    const toml::node* node = Get(table, key);
    if (node == nullptr) return;
    String(table, key, out);
    if (status_.ok() && !IsValidName(*out)) {
      Fail(node->source(),
           absl::StrCat("\"", key, "\" must be 1 to 64 of the characters A-Z a-z 0-9 . _ -, not \"", *out,
                        "\""));
    }
  }
  void HostPort(const toml::table* table, const char* key, bool unix_too, std::string* out) {
    const toml::node* node = Get(table, key);
    if (node == nullptr) return;
    String(table, key, out);
    if (!status_.ok()) return;
    if (unix_too && absl::StartsWith(*out, "unix:/")) {
      const size_t size = out->size() - strlen("unix:");
      if (size > kMaxSocketPath) FailSocket(*node, key, size);
      return;
    }
    if (!IsHostPort(*out, unix_too ? 1 : 0)) {
      Fail(node->source(), absl::StrCat("\"", key, "\" must be \"host:port\"",
                                        unix_too ? " or \"unix:/path\"" : "", ", not \"", *out, "\""));
    }
  }
  void Bool(const toml::table* table, const char* key, bool* out) {
    const toml::node* node = Get(table, key);
    if (node == nullptr) return;
    if (const auto* value = node->as_boolean()) {
      *out = value->get();
    } else {
      Fail(node->source(), absl::StrCat("\"", key, "\" must be true or false"));
    }
  }
  template <class T>
  void Int(const toml::table* table, const char* key, int64_t low, int64_t high, T* out) {
    const toml::node* node = Get(table, key);
    if (node != nullptr) IntNode(*node, key, low, high, out);
  }
  template <class T>
  void IntNode(const toml::node& node, const char* key, int64_t low, int64_t high, T* out) {
    const auto* value = node.as_integer();
    if (value == nullptr) return Fail(node.source(), absl::StrCat("\"", key, "\" must be a whole number"));
    if (value->get() < low || value->get() > high) {
      return Fail(node.source(),
                  absl::StrCat("\"", key, "\" must be from ", low, " to ", high, ", not ", value->get()));
    }
    *out = static_cast<T>(value->get());
  }
  void PortRange(const toml::table* table, uint32_t* low, uint32_t* high) {
    const toml::node* node = Get(table, "port_range");
    if (node == nullptr) return;
    const toml::array* array = node->as_array();
    if (array == nullptr || array->size() != 2) {
      return Fail(node->source(), "\"port_range\" must be [first, last]");
    }
    IntNode(*array->get(0), "port_range", 1, 65535, low);
    IntNode(*array->get(1), "port_range", 1, 65535, high);
    if (status_.ok() && *low > *high)
      Fail(node->source(), "\"port_range\": the first port is above the last");
  }
  void Nccl(const toml::table* table, std::map<std::string, std::string>* out) {
    if (table == nullptr) return;
    for (const auto& [key, value] : *table) {
      const std::string text(key.str());
      if (text == "env") {
        const toml::table* env = value.as_table();
        if (env == nullptr) return Fail(value.source(), "\"env\" must be a table { NAME = \"value\" }");
        for (const auto& [name, v] : *env) Variable(std::string(name.str()), v, out);
        continue;
      }
      if (text != absl::AsciiStrToLower(text) || absl::StartsWith(text, "nccl_")) {
        return Fail(key.source(),
                    absl::StrCat("\"", text, "\": write NCCL variables in lower case without NCCL_, ",
                                 "others as env = { NAME = \"value\" }"));
      }
      Variable("NCCL_" + absl::AsciiStrToUpper(text), value, out);
    }
  }

 private:
  void FailSocket(const toml::node& node, const char* key, size_t size) {
    Fail(node.source(), absl::StrCat("\"", key, "\": a socket's path has at most ", kMaxSocketPath,
                                     " bytes, this one ", size, "; choose a shorter folder"));
  }
  const toml::node* Get(const toml::table* table, const char* key) const {
    return table == nullptr || !status_.ok() ? nullptr : table->get(key);
  }
  void Variable(const std::string& name, const toml::node& node, std::map<std::string, std::string>* out) {
    if (name.empty() || name.find('=') != std::string::npos) {
      return Fail(node.source(), absl::StrCat("\"", name, "\" is no name of an environment variable"));
    }
    if (const auto* s = node.as_string()) {
      (*out)[name] = s->get();
    } else if (const auto* i = node.as_integer()) {
      (*out)[name] = absl::StrCat(i->get());
    } else if (const auto* b = node.as_boolean()) {
      (*out)[name] = b->get() ? "1" : "0";
    } else {
      Fail(node.source(),
           absl::StrCat("the value of ", name, " must be a string, a whole number or a boolean"));
    }
  }

  const toml::table& root_;
  const std::string& path_;
  std::filesystem::path folder_;
  absl::Status status_;
};

void ReadTimeouts(Reader& reader, ClusterFile* file) {
  const toml::table* timeouts = reader.Section(
      "timeouts", {"heartbeat_ms", "node_lease_ms", "isolation_timeout_ms", "orphan_timeout_ms"});
  reader.Int(timeouts, "heartbeat_ms", kMinHeartbeatMs, kMaxTimeoutMs, &file->heartbeat_ms);
  reader.Int(timeouts, "node_lease_ms", kMinHeartbeatMs, kMaxTimeoutMs, &file->node_lease_ms);
  reader.Int(timeouts, "isolation_timeout_ms", kMinHeartbeatMs, kMaxTimeoutMs, &file->isolation_timeout_ms);
  reader.Int(timeouts, "orphan_timeout_ms", 0, kMaxOrphanMs, &file->orphan_timeout_ms);
  if (!reader.status().ok() || timeouts == nullptr) return;
  // What was typed is the culprit, not the default that it contradicts.
  const auto culprit = [timeouts](const char* key, const char* other) {
    const toml::node* node = Reader::NodeOf(timeouts, key);
    if (node == nullptr) node = Reader::NodeOf(timeouts, other);
    return node == nullptr ? timeouts->source() : node->source();
  };
  // One lost heartbeat must not cost a node, and a node is called lost before its ranks are killed.
  if (file->node_lease_ms < kHeartbeatsPerLease * file->heartbeat_ms) {
    reader.Fail(culprit("node_lease_ms", "heartbeat_ms"),
                absl::StrCat("\"node_lease_ms\" (", file->node_lease_ms,
                             ") must be at least four times \"heartbeat_ms\" (", file->heartbeat_ms, ")"));
  }
  if (file->isolation_timeout_ms < file->node_lease_ms) {
    reader.Fail(culprit("isolation_timeout_ms", "node_lease_ms"),
                absl::StrCat("\"isolation_timeout_ms\" (", file->isolation_timeout_ms,
                             ") must not be shorter than \"node_lease_ms\" (", file->node_lease_ms, ")"));
  }
  if (file->orphan_timeout_ms != 0 && file->orphan_timeout_ms < file->isolation_timeout_ms) {
    reader.Fail(culprit("orphan_timeout_ms", "isolation_timeout_ms"),
                absl::StrCat("\"orphan_timeout_ms\" (", file->orphan_timeout_ms,
                             ") must be 0 or not shorter than \"isolation_timeout_ms\" (",
                             file->isolation_timeout_ms, ")"));
  }
}

void ReadAgent(Reader& reader, ClusterFile* file) {
  const toml::table* agent = reader.Section("agent", {"name", "state_dir", "run_dir", "log_dir", "gpus",
                                                      "allow_root", "port_range", "address", "witness_port"});
  reader.Name(agent, "name", &file->agent.name);
  reader.Path(agent, "state_dir", &file->agent.state_dir);
  reader.Path(agent, "run_dir", &file->agent.run_dir);
  reader.Path(agent, "log_dir", &file->agent.log_dir);
  reader.Host(agent, "address", &file->agent.address);
  reader.Int(agent, "gpus", 0, kMaxDeclaredGpus, &file->agent.declared_gpus);
  reader.Bool(agent, "allow_root", &file->agent.allow_root);
  reader.Int(agent, "witness_port", 1, 65535, &file->agent.witness_port);
  reader.PortRange(agent, &file->agent.port_low, &file->agent.port_high);
}

void ReadTls(Reader& reader, ClusterFile* file) {
  const toml::table* tls = reader.Section("tls", {"ca", "cert", "key"});
  reader.Path(tls, "ca", &file->tls_ca);
  reader.Path(tls, "cert", &file->tls_cert);
  reader.Path(tls, "key", &file->tls_key);
  if (!reader.status().ok() || tls == nullptr) return;
  for (const auto& [key, value] : {std::pair<const char*, const std::string&>{"ca", file->tls_ca},
                                   {"cert", file->tls_cert},
                                   {"key", file->tls_key}}) {
    if (value.empty()) {
      reader.Fail(tls->source(), absl::StrCat("[tls] needs ca, cert and key; \"", key, "\" is missing"));
    }
  }
}

// What the parser says may quote the text of the file.
std::string OneLine(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return line;
}

}  // namespace

absl::StatusOr<ClusterFile> ParseClusterFile(const std::string& text, const std::string& path) {
  const toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return absl::InvalidArgumentError(absl::StrCat(path, ":", error.source().begin.line, ":",
                                                   error.source().begin.column, ": ",
                                                   OneLine(error.description())));
  }
  const toml::table& root = parsed.table();
  ClusterFile file;
  file.path = path;
  Reader reader(root, path);
  reader.CheckKeys(root, {"cluster", "controller", "agent", "tls", "timeouts", "nccl"}, "the file");

  const toml::table* cluster = reader.Section("cluster", {"name", "controller"});
  if (cluster == nullptr && reader.status().ok()) reader.Fail(root.source(), "[cluster] is missing");
  reader.Name(cluster, "name", &file.name);
  reader.HostPort(cluster, "controller", true, &file.controller);
  if (cluster != nullptr && file.name.empty()) reader.Fail(cluster->source(), "[cluster] needs a \"name\"");
  if (cluster != nullptr && file.controller.empty()) {
    reader.Fail(cluster->source(), "[cluster] needs \"controller\" (\"host:port\" or \"unix:/path\")");
  }

  const toml::table* controller =
      reader.Section("controller", {"state_dir", "listen", "unix_socket", "any_user"});
  reader.Path(controller, "state_dir", &file.controller_options.state_dir);
  reader.HostPort(controller, "listen", false, &file.controller_options.listen);
  reader.Socket(controller, "unix_socket", &file.controller_options.unix_socket);
  reader.Bool(controller, "any_user", &file.controller_options.any_user);
  ReadAgent(reader, &file);
  ReadTls(reader, &file);
  ReadTimeouts(reader, &file);
  reader.Nccl(reader.Section("nccl", {}), &file.nccl);
  const bool network = !file.controller.empty() && !absl::StartsWith(file.controller, "unix:");
  for (const auto& [table, key] :
       {std::pair{network ? cluster : nullptr, "controller"}, {controller, "listen"}}) {
    const toml::node* address = Reader::NodeOf(table, key);
    if (address == nullptr || !file.tls_cert.empty()) continue;
    reader.Fail(
        address->source(),
        absl::StrCat("\"", key, "\" is a network address and needs [tls] ca, cert and key: there is no ",
                     "plaintext port; dgxrun cluster init DIR makes certificates"));
  }
  if (!reader.status().ok()) return reader.status();
  return file;
}

absl::StatusOr<ClusterFile> ReadClusterFile(const std::string& path) {
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (!std::filesystem::is_regular_file(absolute, error)) {
    return absl::NotFoundError(absl::StrCat(absolute, ": ", error ? error.message() : "is not a file"));
  }
  if (std::filesystem::file_size(absolute, error) > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(absolute, ": too large for a cluster file"));
  }
  errno = 0;
  std::ifstream in(absolute);
  if (!in)
    return absl::PermissionDeniedError(absl::StrCat(absolute, ": cannot be opened: ", strerror(errno)));
  std::ostringstream text;
  text << in.rdbuf();
  return ParseClusterFile(text.str(), absolute);
}

}  // namespace dgxrun
