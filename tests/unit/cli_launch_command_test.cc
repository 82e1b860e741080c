#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "cli/launch_command.h"
#include "cli/paths.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dgxrun::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LaunchCommand : public ::testing::Test {
 protected:
  LaunchCommand() {
    std::string pattern = ::testing::TempDir() + "/dgxrun_cliXXXXXX";
    dir_ = mkdtemp(pattern.data());
    env_["PATH"] = dir_ + "/bin";
    Program("bin/python3");
    File("train.py", 0644);
  }
  ~LaunchCommand() override { std::filesystem::remove_all(dir_); }

  std::string File(const std::string& name, mode_t mode) {
    const std::string path = dir_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << "#!/bin/sh\n";
    chmod(path.c_str(), mode);
    return path;
  }
  std::string Program(const std::string& name) { return File(name, 0755); }

  RankCommand Build(const LaunchOptions& options, bool check = true) {
    auto command = BuildRankCommand(options, env_, dir_, check);
    EXPECT_TRUE(command.ok()) << command.status();
    return command.ok() ? *command : RankCommand();
  }
  std::string ErrorOf(const LaunchOptions& options) {
    auto command = BuildRankCommand(options, env_, dir_, true);
    if (command.ok()) return "(no error)";
    EXPECT_TRUE(absl::IsFailedPrecondition(command.status()));
    return std::string(command.status().message());
  }

  std::string dir_;
  EnvMap env_;
};

LaunchOptions Script(const std::string& script, std::vector<std::string> args = {}) {
  LaunchOptions options;
  options.script = script;
  options.script_args = std::move(args);
  return options;
}

TEST_F(LaunchCommand, PythonOfTheCallersEnvironment) {
  const auto command = Build(Script("train.py", {"--lr", "1"}));
  EXPECT_THAT(command.argv, ElementsAre(dir_ + "/bin/python3", "-u", "train.py", "--lr", "1"));
  EXPECT_EQ(command.script, dir_ + "/train.py");
  env_["CONDA_PREFIX"] = dir_ + "/conda";
  Program("conda/bin/python");
  EXPECT_EQ(Build(Script("train.py")).argv[0], dir_ + "/conda/bin/python");
  env_["VIRTUAL_ENV"] = dir_ + "/venv";
  std::filesystem::create_directories(dir_ + "/venv/bin");
  std::filesystem::create_symlink(dir_ + "/bin/python3", dir_ + "/venv/bin/python");
  EXPECT_EQ(Build(Script("train.py")).argv[0], dir_ + "/venv/bin/python") << "a venv's symlink must stay";
  env_["PYTHON_EXEC"] = "python3";
  EXPECT_EQ(Build(Script("train.py")).argv[0], dir_ + "/bin/python3");
}

TEST_F(LaunchCommand, ModulesAndPrograms) {
  LaunchOptions module = Script("pkg.train", {"x"});
  module.module = true;
  EXPECT_THAT(Build(module).argv, ElementsAre(dir_ + "/bin/python3", "-u", "-m", "pkg.train", "x"));
  EXPECT_EQ(Build(module).script, "");
  LaunchOptions program = Script("/bin/true");
  program.no_python = true;
  EXPECT_THAT(Build(program).argv, ElementsAre("/bin/true"));
  EXPECT_EQ(Build(program).script, "");
  program.script = "python3";
  EXPECT_THAT(Build(program).argv, ElementsAre("python3"));
  Program("train.sh");
  EXPECT_THAT(Build(Script("train.sh", {"a"})).argv, ElementsAre("./train.sh", "a"));
}

TEST_F(LaunchCommand, ErrorsNameTheFile) {
  EXPECT_THAT(ErrorOf(Script("no.py")), HasSubstr("script " + dir_ + "/no.py does not exist"));
  EXPECT_THAT(ErrorOf(Script("python3")), HasSubstr("dgxrun --no-python python3"));
  File("data.txt", 0644);
  EXPECT_THAT(ErrorOf(Script("data.txt")), HasSubstr("not executable"));
  EXPECT_THAT(ErrorOf(Script("bin")), HasSubstr("is not a file"));
  LaunchOptions program = Script("no-such-program");
  program.no_python = true;
  EXPECT_THAT(ErrorOf(program), HasSubstr("program no-such-program is not in PATH"));
  program.script = "./nope";
  EXPECT_THAT(ErrorOf(program), HasSubstr("nope does not exist"));
  env_["PATH"] = "/nonexistent";
  EXPECT_THAT(ErrorOf(Script("train.py")), HasSubstr("PYTHON_EXEC"));
  env_["PYTHON_EXEC"] = "/nonexistent/python";
  EXPECT_THAT(ErrorOf(Script("train.py")), HasSubstr("PYTHON_EXEC=/nonexistent/python"));
}

TEST_F(LaunchCommand, AClusterChecksOnItsNodes) {
  EXPECT_EQ(Build(Script("/data/only/there.py"), false).script, "/data/only/there.py");
  EXPECT_THAT(Build(Script("there.sh"), false).argv, ElementsAre("./there.sh"));
}

TEST_F(LaunchCommand, Spec) {
  LaunchOptions options = Script("train.py");
  options.ckpt_dir = "ck";
  options.resume_args = {"--resume", "{}"};
  options.ranks_per_node = 2;
  auto spec = BuildSpec(options, env_, dir_, true);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->nodes(), 1u);
  EXPECT_EQ(spec->ranks_per_node(), 2u);
  EXPECT_EQ(spec->ckpt_dir(), dir_ + "/ck");
  EXPECT_EQ(spec->grace_ms(), 30000u);
  EXPECT_EQ(spec->max_restarts(), 3u);
  EXPECT_EQ(spec->cwd(), dir_);
  EXPECT_EQ(spec->resume_args_size(), 2);
  EXPECT_EQ(spec->name(), "") << "the controller names it after the script";
}

TEST_F(LaunchCommand, AModulesJobIsNamedAfterIt) {
  LaunchOptions options = Script("pkg.train");
  options.module = true;
  EXPECT_EQ(BuildSpec(options, env_, dir_, true)->name(), "pkg.train");
  options.name = "mine";
  EXPECT_EQ(BuildSpec(options, env_, dir_, true)->name(), "mine");
}

std::map<std::string, std::string> Filtered(const EnvMap& env, const std::string& rule) {
  auto parsed = ParseExport(rule);
  EXPECT_TRUE(parsed.ok());
  std::map<std::string, std::string> kept;
  const v1::Environment environment = FilterEnvironment(env, *parsed);
  for (const v1::EnvVar& var : environment.vars()) kept[var.name()] = var.value();
  return kept;
}

TEST(Environment, WhatGoesAlong) {
  const EnvMap env = {{"PATH", "/bin"},         {"HOME", "/h"},
                      {"LC_ALL", "C"},          {"HF_TOKEN", "s"},
                      {"HOSTNAME", "login"},    {"SSH_CLIENT", "x"},
                      {"DISPLAY", ":0"},        {"XDG_RUNTIME_DIR", "/r"},
                      {"DBUS_SESSION", "d"},    {"SLURM_JOB_ID", "1"},
                      {"DGXRUN_MARK", "m"},     {"RANK", "3"},
                      {"MASTER_ADDR", "other"}, {"TORCHELASTIC_RUN_ID", "r"},
                      {"WORLD_SIZE", "8"},      {"FOO", "1"}};
  using Map = std::map<std::string, std::string>;
  EXPECT_EQ(Filtered(env, "ALL"),
            (Map{{"PATH", "/bin"}, {"HOME", "/h"}, {"LC_ALL", "C"}, {"HF_TOKEN", "s"}, {"FOO", "1"}}));
  EXPECT_EQ(Filtered(env, "NONE"), (Map{{"PATH", "/bin"}, {"HOME", "/h"}, {"LC_ALL", "C"}}));
  EXPECT_EQ(Filtered(env, "FOO,BAR=a=b"),
            (Map{{"PATH", "/bin"}, {"HOME", "/h"}, {"LC_ALL", "C"}, {"FOO", "1"}, {"BAR", "a=b"}}));
  EXPECT_EQ(Filtered(env, "ALL,DISPLAY,FOO=2").at("DISPLAY"), ":0") << "asked for by name";
  EXPECT_EQ(Filtered(env, "ALL,FOO=2").at("FOO"), "2");
  EXPECT_EQ(Filtered(env, "RANK,MASTER_ADDR=x,DGXRUN_MARK").count("RANK"), 0u)
      << "a launcher's variables never";
  EXPECT_EQ(Filtered(env, "RANK,MASTER_ADDR=x").count("MASTER_ADDR"), 0u);
}

TEST(Secrets, AreNotShown) {
  for (const char* name : {"HF_TOKEN", "aws_secret_access_key", "WANDB_API_KEY", "PGPASSWORD"}) {
    EXPECT_TRUE(IsSecretName(name)) << name;
  }
  EXPECT_FALSE(IsSecretName("PATH"));
  EXPECT_THAT(RedactWords({"env", "HF_TOKEN=abc", "--api-key=def", "lr=1", "--hf-token", "ghi", "--tokenizer",
                           "gpt2", "--num_tokens", "5", "--password", "--next"}),
              ElementsAre("env", "HF_TOKEN=***", "--api-key=***", "lr=1", "--hf-token", "***", "--tokenizer",
                          "gpt2", "--num_tokens", "5", "--password", "--next"));
}

TEST(Paths, Order) {
  const auto no_tmpfs = [](const std::string&) { return false; };
  const auto shm = [](const std::string& path) { return path == "/dev/shm"; };
  const auto tmp = [](const std::string&) { return true; };
  EXPECT_EQ(FindPaths({{"HOME", "/h"}}, 7, tmp)->state_dir, "/h/.local/state/dgxrun");
  EXPECT_EQ(FindPaths({{"HOME", "/h"}, {"XDG_STATE_HOME", "/x"}}, 7, tmp)->state_dir, "/x/dgxrun");
  EXPECT_EQ(FindPaths({{"DGXRUN_STATE_DIR", "/s"}}, 7, tmp)->state_dir, "/s");
  EXPECT_EQ(FindPaths({{"HOME", "/h"}}, 0, tmp)->run_dir, "/run/dgxrun");
  EXPECT_EQ(FindPaths({{"HOME", "/h"}}, 7, tmp)->run_dir, "/tmp/dgxrun-7");
  EXPECT_EQ(FindPaths({{"HOME", "/h"}}, 7, shm)->run_dir, "/dev/shm/dgxrun-7");
  EXPECT_EQ(FindPaths({{"HOME", "/h"}}, 7, no_tmpfs)->run_dir, "/tmp/dgxrun-7");
  EXPECT_EQ(FindPaths({{"HOME", "/h"}, {"DGXRUN_RUN_DIR", "/r"}}, 7, shm)->run_dir, "/r");
  EXPECT_EQ(FindPaths({{"HOME", "/h"}}, 7, tmp)->user_config, "/h/.config/dgxrun");
  EXPECT_FALSE(FindPaths({}, 7, tmp).ok());
  EXPECT_FALSE(FindPaths({{"DGXRUN_STATE_DIR", "relative"}}, 7, tmp).ok());
}

}  // namespace
}  // namespace dgxrun::cli
