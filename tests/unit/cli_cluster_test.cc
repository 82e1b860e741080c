// Which cluster is meant, and the files of `dgxrun cluster init`.
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "cli/cluster_choice.h"
#include "cli/cluster_init.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dgxrun::cli {
namespace {

using ::testing::HasSubstr;

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest() {
    std::string pattern = ::testing::TempDir() + "/dgxrun_clusterXXXXXX";
    dir_ = mkdtemp(pattern.data());
    paths_.state_dir = dir_ + "/state";
    paths_.user_config = dir_ + "/user";
    paths_.system_config = dir_ + "/etc";
  }
  ~ClusterTest() override { std::filesystem::remove_all(dir_); }

  std::string Toml(const std::string& path, const std::string& name) {
    std::filesystem::create_directories(std::filesystem::path(dir_ + "/" + path).parent_path());
    std::ofstream(dir_ + "/" + path) << "[cluster]\nname = \"" << name << "\"\ncontroller = \"unix:/x\"\n";
    return dir_ + "/" + path;
  }
  std::string Found(const std::string& asked, const EnvMap& env = {}) {
    auto choice = FindCluster(asked, env, paths_);
    if (!choice.ok()) return "error: " + std::string(choice.status().message());
    return choice->has_value() ? (*choice)->file.name : "none";
  }

  std::string dir_;
  Paths paths_;
};

TEST_F(ClusterTest, Order) {
  EXPECT_EQ(Found(""), "none");
  Toml("state/dev/cluster.toml", "dev");
  EXPECT_EQ(Found(""), "dev");
  Toml("etc/cluster.toml", "system");
  EXPECT_EQ(Found(""), "system");
  Toml("user/cluster.toml", "users");
  EXPECT_EQ(Found(""), "users");
  Toml("etc/big.toml", "big");
  EXPECT_EQ(Found("", {{"DGXRUN_CLUSTER", "big"}}), "big");
  const std::string file = Toml("other.toml", "other");
  EXPECT_EQ(Found(file, {{"DGXRUN_CLUSTER", "big"}}), "other");
  Toml("user/big.toml", "my-big");
  EXPECT_EQ(Found("big"), "my-big");
  EXPECT_EQ(Found("dev"), "dev");
}

TEST_F(ClusterTest, Errors) {
  EXPECT_THAT(Found("nope"), HasSubstr("no cluster nope: looked for " + dir_ + "/user/nope.toml"));
  EXPECT_THAT(Found("/no/file.toml"), HasSubstr("cluster file /no/file.toml does not exist"));
  EXPECT_THAT(Found("dev"), HasSubstr("dgxrun dev up"));
  const auto none = NeedCluster("", {}, paths_, 2);
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(none.status()));
  for (const char* way : {"dgxrun dev up -n 2", "--cluster", "DGXRUN_CLUSTER", "leave out -n"}) {
    EXPECT_THAT(std::string(none.status().message()), HasSubstr(way));
  }
  std::ofstream(Toml("user/cluster.toml", "x")) << "[cluster\n";
  EXPECT_THAT(Found(""), HasSubstr("user/cluster.toml:1:"));
}

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
Certificate ReadCertificate(const std::string& path) {
  FILE* file = fopen(path.c_str(), "r");
  X509* cert = file == nullptr ? nullptr : PEM_read_X509(file, nullptr, nullptr, nullptr);
  if (file != nullptr) fclose(file);
  return Certificate(cert, X509_free);
}
std::string CommonName(X509* cert) {
  char name[128] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, name, sizeof name);
  return name;
}

TEST_F(ClusterTest, Certificates) {
  const std::string dir = dir_ + "/pki";
  ASSERT_TRUE(MakeClusterCertificates(dir, {"head.example", "10.0.0.1"}, {"alice"}).ok());
  const Certificate ca = ReadCertificate(dir + "/ca.crt");
  ASSERT_NE(ca, nullptr);
  EXPECT_GT(X509_check_ca(ca.get()), 0);
  const std::pair<const char*, const char*> leaves[] = {
      {"controller", "controller"}, {"agent", "agent"}, {"user-alice", "user:alice"}};
  for (const auto& [stem, name] : leaves) {
    const Certificate cert = ReadCertificate(dir + "/" + stem + ".crt");
    ASSERT_NE(cert, nullptr) << stem;
    EXPECT_EQ(CommonName(cert.get()), name);
    EXPECT_EQ(X509_verify(cert.get(), X509_get0_pubkey(ca.get())), 1);
    EXPECT_EQ(X509_check_ca(cert.get()), 0);
    struct stat info;
    ASSERT_EQ(stat((dir + "/" + stem + ".key").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777u, 0600u);
  }
  const Certificate controller = ReadCertificate(dir + "/controller.crt");
  EXPECT_EQ(X509_check_host(controller.get(), "dgxrun-controller", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(controller.get(), "head.example", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_ip_asc(controller.get(), "10.0.0.1", 0), 1);
  EXPECT_EQ(X509_check_host(controller.get(), "elsewhere", 0, 0, nullptr), 0);
}

TEST_F(ClusterTest, InitWritesFilesThatParseAndOverwritesNothing) {
  const std::string dir = dir_ + "/new";
  auto next = InitCluster(dir, "lab", {"10.0.0.1"}, {"alice", "bob"});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(*next, HasSubstr("dgxrun-controller --config"));
  for (const char* name : {"controller.toml", "agent.toml", "cluster.toml"}) {
    auto file = ReadClusterFile(dir + "/" + name);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->name, "lab");
    EXPECT_EQ(file->controller, "10.0.0.1:7450");
    EXPECT_TRUE(std::filesystem::exists(file->tls_key)) << file->tls_key;
  }
  auto again = InitCluster(dir, "lab", {"10.0.0.1"}, {"alice"});
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("exists; nothing is overwritten"));
  EXPECT_FALSE(InitCluster(dir_ + "/x", "lab", {"a b"}, {"alice"}).ok());
}

}  // namespace
}  // namespace dgxrun::cli
