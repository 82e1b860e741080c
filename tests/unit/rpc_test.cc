#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc/credentials.h"
#include "proto/rpc/status.h"
#include "proto/rpc/wire_version.h"
#include "tests/unit/controller_temp_dir.h"

namespace dgxrun {
namespace {

using ::testing::HasSubstr;

TEST(WireVersion, SameMajorAndNeighbouringMinor) {
  v1::WireVersion theirs = OurWireVersion();
  EXPECT_TRUE(CheckWireVersion(theirs, "agent").ok());
  theirs.set_minor(theirs.minor() + 1);
  EXPECT_TRUE(CheckWireVersion(theirs, "agent").ok());
  theirs.set_minor(theirs.minor() + 1);
  theirs.set_release("9.9");
  absl::Status status = CheckWireVersion(theirs, "the agent of n1");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the agent of n1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("9.9"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(DGXRUN_VERSION));
  theirs = OurWireVersion();
  theirs.set_major(theirs.major() + 1);
  EXPECT_FALSE(CheckWireVersion(theirs, "agent").ok());
  EXPECT_FALSE(CheckWireVersion(v1::WireVersion(), "agent").ok());
}

TEST(RpcStatus, GoesThereAndBack) {
  const absl::Status status = absl::ResourceExhaustedError("full");
  EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  EXPECT_TRUE(FromGrpc(ToGrpc(absl::OkStatus())).ok());
}

class TlsFilesTest : public ::testing::Test {
 protected:
  void Make(const std::string& name, const std::string& extra) {
    const std::string command =
        "cd " + dir_.path() +
        " && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " + name +
        ".key -out " + name + ".crt -subj /CN=" + name + " " + extra + " 2>/dev/null";
    ASSERT_EQ(system(command.c_str()), 0);
    chmod((dir_ / (name + ".key")).c_str(), 0600);
  }
  TlsFiles Files(const std::string& ca, const std::string& name) {
    return {dir_ / (ca + ".crt"), dir_ / (name + ".crt"), dir_ / (name + ".key")};
  }
  std::string Error(const TlsFiles& files) { return std::string(ServerTls(files).status().message()); }
  TempDir dir_;
};

TEST_F(TlsFilesTest, ErrorsNameFileAndReason) {
  Make("one", "-days 2");
  Make("two", "-days 2");
  EXPECT_TRUE(ServerTls(Files("one", "one")).ok());
  EXPECT_TRUE(ClientTls(Files("one", "one")).ok());
  EXPECT_THAT(Error({dir_ / "none.crt", dir_ / "one.crt", dir_ / "one.key"}), HasSubstr("none.crt"));
  EXPECT_THAT(Error({dir_ / "one.crt", dir_ / "one.crt", ""}), HasSubstr("no key file"));
  EXPECT_THAT(Error(Files("two", "one")), HasSubstr("was not signed by"));
  TlsFiles mixed = Files("one", "one");
  mixed.key = dir_ / "two.key";
  EXPECT_THAT(Error(mixed), HasSubstr("is not the key of"));
  chmod((dir_ / "one.key").c_str(), 0644);
  EXPECT_THAT(Error(Files("one", "one")), HasSubstr("chmod 600"));
  std::ofstream(dir_ / "two.crt") << "nonsense";
  EXPECT_THAT(Error(Files("two", "two")), HasSubstr("holds no PEM certificate"));
}

TEST_F(TlsFilesTest, OverANetworkThereIsOnlyTls) {
  EXPECT_THAT(std::string(Dial("127.0.0.1:1", TlsFiles(), false).status().message()), HasSubstr("needs TLS"));
  EXPECT_TRUE(Dial("unix:/tmp/nobody", TlsFiles(), true).ok());
}

}  // namespace
}  // namespace dgxrun
