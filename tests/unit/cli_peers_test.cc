// Peers mode, the parts without a network: options, the key and what follows from it, the place of a process.
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/certificates.h"
#include "cli/command_line.h"
#include "cli/local_jobs.h"
#include "cli/peers_key.h"
#include "cli/peers_options.h"
#include "cli/peers_place.h"
#include "gtest/gtest.h"

namespace dgxrun::cli {
namespace {

class TempFolder {
 public:
  TempFolder() {
    char name[] = "/tmp/dgxrun-peers-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

LaunchOptions Launched(const std::vector<std::string>& words) {
  auto command = ParseCommandLine(words);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? std::get<LaunchOptions>(*command) : LaunchOptions();
}

std::string ErrorOf(const std::vector<std::string>& words) {
  auto command = ParseCommandLine(words);
  return command.ok() ? "" : std::string(command.status().message());
}

TEST(PeersOptions, TorchrunsWordsInBothSpellings) {
  const LaunchOptions options =
      Launched({"--nnodes=2", "--nproc_per_node", "4", "--rdzv_endpoint", "n1:1234", "--rdzv-backend", "c10d",
                "--rdzv_id=77", "--node-rank", "1", "--orphan-timeout", "90s", "train.py", "--nnodes", "9"});
  EXPECT_EQ(options.nodes, 2u);
  EXPECT_EQ(options.ranks_per_node, 4u);
  ASSERT_TRUE(options.peers.has_value());
  EXPECT_EQ(options.peers->endpoint(), "n1:1234");
  EXPECT_EQ(options.peers->rdzv_id, "77");
  EXPECT_EQ(options.peers->node_rank, 1u);
  EXPECT_EQ(options.peers->orphan_timeout, absl::Seconds(90));
  EXPECT_EQ(options.peers->join_timeout, absl::Seconds(600));
  EXPECT_EQ(options.script_args.size(), 2u);
}

TEST(PeersOptions, Endpoints) {
  EXPECT_EQ(Launched({"--rdzv-endpoint", "n1", "x.py"}).peers->endpoint(), "n1:29400");
  EXPECT_EQ(Launched({"--rdzv-endpoint", "[fd00::1]:5", "x.py"}).peers->endpoint(), "[fd00::1]:5");
  EXPECT_EQ(Launched({"--rdzv-endpoint", "fd00::1", "x.py"}).peers->endpoint(), "[fd00::1]:29400");
  EXPECT_EQ(Launched({"--rdzv-endpoint", "10.0.0.1:7", "x.py"}).peers->endpoint(), "10.0.0.1:7");
  for (const char* bad : {":5", "n1:", "n1:x", "n1:0", "n1:65500", "[fd00::1"}) {
    EXPECT_NE(ErrorOf({"--rdzv-endpoint", bad, "x.py"}).find("--rdzv-endpoint"), std::string::npos) << bad;
  }
}

TEST(PeersOptions, WhatIsRefused) {
  EXPECT_NE(ErrorOf({"--nnodes", "1:4", "--rdzv-endpoint", "n1", "x.py"}).find("fixed number"),
            std::string::npos);
  EXPECT_NE(ErrorOf({"--node-rank", "1", "x.py"}).find("needs --rdzv-endpoint"), std::string::npos);
  EXPECT_NE(ErrorOf({"--rdzv-backend", "etcd", "--rdzv-endpoint", "n1", "x.py"}).find("etcd"),
            std::string::npos);
  EXPECT_NE(ErrorOf({"--orphan-timeout", "1s", "--rdzv-endpoint", "n1", "x.py"}).find("at least"),
            std::string::npos);
  EXPECT_NE(ErrorOf({"--detach", "--rdzv-endpoint", "n1", "x.py"}).find("--detach"), std::string::npos);
  EXPECT_NE(ErrorOf({"--cluster", "c", "--rdzv-endpoint", "n1", "x.py"}).find("--cluster"),
            std::string::npos);
}

TEST(PeersOptions, WithoutAnEndpoint) {
  EXPECT_EQ(Launched({"--nnodes", "1", "--nproc-per-node", "gpu", "x.py"}).nodes, 0u) << "here";
  EXPECT_EQ(Launched({"--nnodes", "2:2", "x.py"}).nodes, 2u);
  EXPECT_EQ(Launched({"--nproc-per-node", "auto", "x.py"}).ranks_per_node, 0u);
  EXPECT_TRUE(Launched({"--nproc-per-node", "cpu", "x.py"}).ranks_are_cpus);
}

X509* CertificateOf(const std::string& pem) {
  BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* cert = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  BIO_free_all(bio);
  return cert;
}

// Whether the one's certificate is signed by the other's authority.
bool Accepts(const PeersCertificate& authority, const PeersCertificate& one) {
  const Cert ca(CertificateOf(authority.ca)), cert(CertificateOf(one.cert));
  return X509_verify(cert.get(), X509_get0_pubkey(ca.get())) == 1 &&
         X509_check_issued(ca.get(), cert.get()) == X509_V_OK;
}

TEST(PeersKey, OneSecretMakesOneAuthorityAnotherMakesAnother) {
  auto a = MakePeersCertificate("a secret of sixteen or more");
  auto b = MakePeersCertificate("a secret of sixteen or more");
  auto c = MakePeersCertificate("a secret of sixteen or morf");
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_TRUE(Accepts(*a, *b));
  EXPECT_TRUE(Accepts(*b, *a));
  EXPECT_FALSE(Accepts(*a, *c));
  EXPECT_NE(a->key, b->key) << "each process has a key of its own";
}

TEST(PeersKey, TheFileIsMadeOnceAndMustBeOurs) {
  TempFolder folder;
  Paths paths;
  paths.user_config = folder.path() + "/config/dgxrun";
  auto made = FindPeersSecret({}, paths);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->made);
  EXPECT_EQ(made->bytes.size(), 64u);
  auto again = FindPeersSecret({}, paths);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->made);
  EXPECT_EQ(again->bytes, made->bytes);
  const std::string path = paths.user_config + "/peers.key";
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(ListFolder(paths.user_config).size(), 1u) << "nothing is left of the making";
  chmod(path.c_str(), 0644);
  EXPECT_NE(std::string(FindPeersSecret({}, paths).status().message()).find("chmod 600"), std::string::npos);
  // The variable needs no file.
  auto variable = FindPeersSecret({{kPeersKeyVariable, "sixteen letters!"}}, paths);
  ASSERT_TRUE(variable.ok());
  EXPECT_EQ(variable->from, kPeersKeyVariable);
  const absl::Status short_one = FindPeersSecret({{kPeersKeyVariable, "fifteen letters"}}, paths).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(short_one));
  EXPECT_EQ(std::string(short_one.message()).find("fifteen"), std::string::npos) << "never in a message";
}

TEST(PeersPlace, SlotsAreTakenInTurnAndLeftBehindByNobody) {
  TempFolder folder;
  PeersOptions options;
  options.host = "n1";
  {
    auto first = PeersPlace::Take(folder.path(), options, "host");
    auto second = PeersPlace::Take(folder.path(), options, "host");
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    EXPECT_EQ(first->slot(), 0u);
    EXPECT_EQ(second->slot(), 1u);
    EXPECT_FALSE(first->found_living());
    options.rdzv_id = "other";
    auto other = PeersPlace::Take(folder.path(), options, "host");
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(other->slot(), 0u);
    EXPECT_NE(other->folder(), first->folder());
    first->Remove();
    second->Remove();
    other->Remove();
  }
  EXPECT_TRUE(ListFolder(folder.path()).empty());
}

TEST(PeersPlace, AProcessThatComesBackTakesTheSlotWhoseShimsLive) {
  TempFolder folder;
  PeersOptions options;
  options.host = "n1";
  std::string left;
  UniqueFd shim;
  {
    auto first = PeersPlace::Take(folder.path(), options, "host");
    auto second = PeersPlace::Take(folder.path(), options, "host");
    ASSERT_TRUE(first.ok() && second.ok());
    std::filesystem::create_directories(second->shims() + "/abcdef-1.0");
    auto listening = ListenForLife(second->shims() + "/abcdef-1.0/shim.sock");
    ASSERT_TRUE(listening.ok()) << listening.status();
    shim = *std::move(listening);
    left = second->folder();
  }  // killed: nothing was removed
  auto again = PeersPlace::Take(folder.path(), options, "host");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->folder(), left);
  EXPECT_TRUE(again->found_living());
  EXPECT_EQ(again->slot(), 1u);
}

TEST(PeersPlace, WhatIsOlderThanAnyRankIsHistory) {
  TempFolder folder;
  PeersOptions options;
  options.host = "n1";
  const auto leave = [&](absl::Duration age) {
    auto place = PeersPlace::Take(folder.path(), options, "host");
    ASSERT_TRUE(place.ok());
    const std::string file = place->folder() + "/agent.db";
    std::filesystem::create_directories(place->controller());
    fclose(fopen(file.c_str(), "w"));
    for (const std::string& path : {file, place->folder() + "/lock"}) {
      const timespec then = absl::ToTimespec(absl::Now() - age);
      const timespec times[2] = {then, then};
      utimensat(AT_FDCWD, path.c_str(), times, 0);
    }
  };
  leave(absl::Seconds(30));
  {
    auto place = PeersPlace::Take(folder.path(), options, "host");
    ASSERT_TRUE(place.ok());
    EXPECT_TRUE(std::filesystem::exists(place->folder() + "/agent.db")) << "its job may go on";
  }
  leave(absl::Minutes(10));
  auto place = PeersPlace::Take(folder.path(), options, "host");
  ASSERT_TRUE(place.ok());
  EXPECT_FALSE(std::filesystem::exists(place->folder() + "/agent.db"));
  EXPECT_FALSE(std::filesystem::exists(place->controller()));
}

TEST(PeersPlace, Hosts) {
  std::string why;
  EXPECT_TRUE(IsOwnHost("localhost", &why));
  EXPECT_TRUE(IsOwnHost("127.0.0.5", &why));
  EXPECT_FALSE(IsOwnHost("192.0.2.1", &why)) << "TEST-NET-1 is nobody's";
  PeersOptions options;
  options.host = "localhost";
  EXPECT_EQ(ListenAddress(options), "127.0.0.1:29400");
  options.host = "127.0.0.5";
  EXPECT_EQ(ListenAddress(options), "127.0.0.5:29400");
  options.host = "n1";
  EXPECT_TRUE(ListenAddress(options) == "[::]:29400" || ListenAddress(options) == "0.0.0.0:29400");
}

TEST(PeersJobs, EachProcessWritesItsOwnFilesAndTheNewestStatusIsTold) {
  TempFolder folder;
  const LocalJobs jobs(folder.path());
  v1::JobStatus status;
  status.set_job_id("abcdef-1");
  status.set_state(v1::JOB_STATE_RUNNING);
  auto alive = ListenForLife(folder.path() + "/life.sock");
  ASSERT_TRUE(alive.ok());
  ASSERT_TRUE(jobs.WritePeer(status, "n2", folder.path() + "/life.sock", "n1:29400").ok());
  auto found = jobs.Find("abcdef-1");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->endpoint, "n1:29400");
  EXPECT_EQ(found->control_socket, folder.path() + "/life.sock");
  // The endpoint's own socket is preferred: it needs no key.
  auto control = ListenForLife(folder.path() + "/control.sock");
  ASSERT_TRUE(control.ok());
  ASSERT_TRUE(jobs.WritePeer(status, "n1", folder.path() + "/control.sock", "").ok());
  found = jobs.Find("abcdef-1");
  EXPECT_EQ(found->control_socket, folder.path() + "/control.sock");
  EXPECT_EQ(found->endpoint, "");
  alive->Reset();
  control->Reset();
  EXPECT_EQ(jobs.Find("abcdef-1")->status.why().cause(), v1::CAUSE_CLIENT_LOST)
      << "its processes were killed";
  status.set_state(v1::JOB_STATE_SUCCEEDED);
  ASSERT_TRUE(jobs.WritePeer(status, "n2", folder.path() + "/life.sock", "n1:29400").ok());
  EXPECT_EQ(jobs.Find("")->status.state(), v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace dgxrun::cli
