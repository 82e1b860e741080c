#include <filesystem>
#include <string>

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
      "[timeouts]\nheartbeat_ms=100\nnode_lease_ms=500\nisolation_timeout_ms=1000\n"
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
      {"[cluster", "/c.toml:1:", ""},
      {"[cluster]\n[=x]\n", "/c.toml:2:", "expected bare key"},
      {"[cluster]\nname='c'\ncontroler='a:1'\n", "/c.toml:3:1: ", "did you mean \"controller\"?"},
      {"[clutser]\n", "/c.toml:1:", "did you mean \"cluster\"?"},
      {"[cluster]\nname='c'\n", "/c.toml:1:", "needs \"controller\""},
      {"[cluster]\nname='c d'\ncontroller='a:1'\n", "/c.toml:2:6: ", "\"name\" must be 1 to 64"},
      {"[cluster]\nname='c'\ncontroller='host'\n", "/c.toml:3:12: ", "\"host:port\" or \"unix:/path\""},
      {"[agent]\ngpus='8'\n", "/c.toml:5:6: ", "\"gpus\" must be a whole number"},
      {"[agent]\ngpus=-1\n", "/c.toml:5:6: ", "must be from 0 to"},
      {"[agent]\nport_range=[5, 4]\n", "/c.toml:5:", "first port is above the last"},
      {"[agent]\nstate_dir='~/x'\n", "/c.toml:5:", "~ is not expanded"},
      {"[agent]\nallow_root=1\n", "/c.toml:5:", "must be true or false"},
      {"[controller]\nlisten='h:1'\n", "/c.toml:4:", "needs [tls]"},
      {"[tls]\nca='a'\ncert='b'\n", "/c.toml:4:", "\"key\" is missing"},
      {"[timeouts]\nheartbeat_ms=1000\nnode_lease_ms=1500\n", "/c.toml:4:", "at least twice"},
      {"[timeouts]\nisolation_timeout_ms=1000\n", "/c.toml:4:", "must not be shorter"},
      {"[nccl]\nNCCL_DEBUG='INFO'\n", "/c.toml:5:1: ", "in lower case without NCCL_"},
  };
  for (const auto& c : cases) {
    std::string text = c.text;
    if (text.find("cl") != 1) text = kCluster + text;
    absl::StatusOr<ClusterFile> file = ParseClusterFile(text, "/c.toml");
    ASSERT_FALSE(file.ok()) << c.text;
    EXPECT_THAT(std::string(file.status().message()), StartsWith(c.where)) << c.text;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(c.what)) << c.text;
  }
  EXPECT_EQ(ReadClusterFile("/no/such.toml").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace dgxrun
