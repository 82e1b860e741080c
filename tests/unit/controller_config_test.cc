#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/base/cluster_file.h"

namespace dgxrun {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kCluster[] = "[cluster]\nname = \"c\"\ncontroller = \"unix:/run/c.sock\"\n";

TEST(ClusterFile, AllShippedFilesParse) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(DGXRUN_SOURCE_DIR) + "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    EXPECT_EQ(ReadClusterFile(entry.path().string()).status().message(), "");
    ++files;
  }
  EXPECT_GE(files, 2);
}

TEST(ClusterFile, ReadsEveryPart) {
  absl::StatusOr<ClusterFile> file = ParseClusterFile(
      "[cluster]\nname='h'\ncontroller='head:7450'\n"
      "[controller]\nstate_dir='/s'\nlisten='[::]:7450'\nunix_socket='c.sock'\nany_user=true\n"
      "[agent]\nname='n1'\nstate_dir='/a'\nrun_dir='/r'\nlog_dir='/l'\ngpus=8\nallow_root=true\n"
      "port_range=[29500, 29510]\naddress='10.0.0.1'\n"
      "[tls]\nca='ca.crt'\ncert='/abs/c.crt'\nkey='k.key'\n"
      "[timeouts]\nheartbeat_ms=100\nnode_lease_ms=500\nisolation_timeout_ms=1000\norphan_timeout_ms=60000\n"
      "[nccl]\nib_hca='=mlx5_0'\nib_timeout=22\nnvls_enable=false\nenv={ FOO = 'bar' }\n",
      "/etc/dgxrun/h.toml");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->controller_options.listen, "[::]:7450");
  EXPECT_EQ(file->controller_options.unix_socket, "/etc/dgxrun/c.sock");
  EXPECT_TRUE(file->controller_options.any_user);
  EXPECT_EQ(file->agent.declared_gpus, 8);
  EXPECT_EQ(file->agent.port_low, 29500u);
  EXPECT_EQ(file->agent.port_high, 29510u);
  EXPECT_EQ(file->tls_ca, "/etc/dgxrun/ca.crt");
  EXPECT_EQ(file->tls_cert, "/abs/c.crt");
  EXPECT_EQ(file->node_lease_ms, 500u);
  EXPECT_EQ(file->orphan_timeout_ms, 60000u);
  EXPECT_THAT(file->nccl, ::testing::UnorderedElementsAre(::testing::Pair("NCCL_IB_HCA", "=mlx5_0"),
                                                          ::testing::Pair("NCCL_IB_TIMEOUT", "22"),
                                                          ::testing::Pair("NCCL_NVLS_ENABLE", "0"),
                                                          ::testing::Pair("FOO", "bar")));
}

TEST(ClusterFile, ErrorsSayWhereAndWhat) {
  const struct {
    const char* text;
    const char* where;
    const char* what;
  } cases[] = {
      // Syntax.
      {"[cluster", "/c.toml:1:", ""},
      {"[cluster]\n[=x]\n", "/c.toml:2:", "expected bare key"},
      {"[agent]\nname = \n", "/c.toml:5:", ""},
      {"[agent]\nname = 'x\n", "/c.toml:5:", ""},
      {"[agent]\nname = \"\\q\"\n", "/c.toml:5:", ""},
      {"[agent]\ngpus = 8 9\n", "/c.toml:5:", ""},
      {"[agent]\nname='a'\nname='b'\n", "/c.toml:6:", "name"},
      {"[agent]\n[agent]\n", "/c.toml:5:", "agent"},
      {"[agent]\nname = 'x'\xff\n", "/c.toml:5:", ""},
      // Tables and keys that there are not.
      {"[clutser]\n", "/c.toml:1:", "did you mean \"cluster\"?"},
      {"[agents]\n", "/c.toml:4:2: ", "did you mean \"agent\"?"},
      {"[frobnicate]\n", "/c.toml:4:2: ", "unknown key \"frobnicate\" in the file (keys: cluster, "},
      {"[cluster]\nname='c'\ncontroler='a:1'\n", "/c.toml:3:1: ", "did you mean \"controller\"?"},
      {"[agent]\nlog_dirs='/l'\n", "/c.toml:5:1: ", "did you mean \"log_dir\"?"},
      {"[agent]\nzzz=1\naaa=1\n", "/c.toml:5:1: ", "unknown key \"zzz\" in [agent] (keys: "},
      {"[timeouts]\nheartbeat=1\n", "/c.toml:5:1: ", "unknown key \"heartbeat\""},
      {"[tls]\ncertificate='x'\n", "/c.toml:5:1: ", "(keys: ca, cert, key)"},
      // Types.
      {"[agent]\ngpus='8'\n", "/c.toml:5:6: ", "\"gpus\" must be a whole number"},
      {"[agent]\ngpus=8.5\n", "/c.toml:5:6: ", "\"gpus\" must be a whole number"},
      {"[agent]\nallow_root=1\n", "/c.toml:5:12: ", "must be true or false"},
      {"[agent]\nname=7\n", "/c.toml:5:6: ", "\"name\" must be a string"},
      {"[agent]\nlog_dir=['/l']\n", "/c.toml:5:9: ", "\"log_dir\" must be a string"},
      {"[agent]\nport_range=29500\n", "/c.toml:5:12: ", "must be [first, last]"},
      {"[agent]\nport_range=[1, 2, 3]\n", "/c.toml:5:12: ", "must be [first, last]"},
      {"[agent]\nport_range=[1, 'x']\n", "/c.toml:5:16: ", "must be a whole number"},
      {"[[agent]]\n", "/c.toml:4:", "[agent] must be a table"},
      {"[nccl]\ndebug=[1]\n", "/c.toml:5:7: ", "NCCL_DEBUG must be a string"},
      {"[nccl]\nenv=1\n", "/c.toml:5:5: ", "must be a table"},
      // Values.
      {"[cluster]\nname='c d'\ncontroller='a:1'\n", "/c.toml:2:6: ", "\"name\" must be 1 to 64"},
      {"[cluster]\nname=''\ncontroller='a:1'\n", "/c.toml:2:6: ", "\"name\" must be 1 to 64"},
      {"[cluster]\nname='c'\ncontroller='host'\n", "/c.toml:3:12: ", "\"host:port\" or \"unix:/path\""},
      {"[cluster]\nname='c'\ncontroller='host:0'\n", "/c.toml:3:12: ", "not \"host:0\""},
      {"[cluster]\nname='c'\ncontroller='host:65536'\n", "/c.toml:3:12: ", "not \"host:65536\""},
      {"[cluster]\nname='c'\ncontroller='::1:70'\n", "/c.toml:3:12: ", "not \"::1:70\""},
      {"[cluster]\nname='c'\ncontroller='unix:run/c'\n", "/c.toml:3:12: ", "\"unix:/path\""},
      {"[agent]\ngpus=-1\n", "/c.toml:5:6: ", "must be from 0 to"},
      {"[agent]\ngpus=65\n", "/c.toml:5:6: ", "must be from 0 to 64, not 65"},
      {"[agent]\nport_range=[0, 4]\n", "/c.toml:5:13: ", "must be from 1 to 65535, not 0"},
      {"[agent]\nstate_dir='~/x'\n", "/c.toml:5:11: ", "~ is not expanded"},
      {"[agent]\nlog_dir=''\n", "/c.toml:5:9: ", "is empty"},
      {"[agent]\naddress='10.0.0.0/8'\n", "/c.toml:5:9: ", "an address or a host name"},
      {"[timeouts]\nheartbeat_ms=1\n", "/c.toml:5:14: ", "must be from 10 to"},
      {"[nccl]\nNCCL_DEBUG='INFO'\n", "/c.toml:5:1: ", "in lower case without NCCL_"},
      // Missing, and in conflict with another.
      {"[cluster]\nname='c'\n", "/c.toml:1:", "needs \"controller\""},
      {"[agent]\nport_range=[5, 4]\n", "/c.toml:5:12: ", "first port is above the last"},
      {"[controller]\nlisten='h:1'\n", "/c.toml:5:8: ", "needs [tls]"},
      {"[cluster]\nname='c'\ncontroller='h:1'\n", "/c.toml:3:12: ", "needs [tls]"},
      {"[tls]\nca='a'\ncert='b'\n", "/c.toml:4:", "\"key\" is missing"},
      {"[timeouts]\nheartbeat_ms=1000\nnode_lease_ms=3500\n", "/c.toml:6:15: ", "at least four times"},
      {"[timeouts]\nheartbeat_ms=3000\n", "/c.toml:5:14: ", "at least four times"},
      {"[timeouts]\nisolation_timeout_ms=1000\n", "/c.toml:5:22: ", "must not be shorter"},
      {"[timeouts]\nnode_lease_ms=20000\n", "/c.toml:5:15: ", "must not be shorter"},
      {"[timeouts]\norphan_timeout_ms=5000\n", "/c.toml:5:19: ", "must be 0 or not shorter"},
      {"[agent]\nwitness_port=0\n", "/c.toml:5:14: ", "must be from 1 to 65535"},
  };
  for (const auto& c : cases) {
    std::string text = c.text;
    if (text.find("cl") != 1) text = kCluster + text;
    absl::StatusOr<ClusterFile> file = ParseClusterFile(text, "/c.toml");
    ASSERT_FALSE(file.ok()) << c.text;
    EXPECT_THAT(std::string(file.status().message()), StartsWith(c.where)) << c.text;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(c.what)) << c.text;
    EXPECT_EQ(file.status().message().find('\n'), absl::string_view::npos) << c.text;
  }
  const std::string long_path = "/" + std::string(107, 'x');
  EXPECT_THAT(
      std::string(
          ParseClusterFile(absl::StrCat(kCluster, "[controller]\nunix_socket='", long_path, "'\n"), "/c.toml")
              .status()
              .message()),
      HasSubstr("/c.toml:5:13: \"unix_socket\": a socket's path has at most 107 bytes, this one 108"));
  EXPECT_EQ(ReadClusterFile("/no/such.toml").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace dgxrun
