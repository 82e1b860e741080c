// A folder of a test's own, removed with all in it.
#ifndef DGXRUN_TESTS_UNIT_CONTROLLER_TEMP_DIR_H_
#define DGXRUN_TESTS_UNIT_CONTROLLER_TEMP_DIR_H_

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace dgxrun {

class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/dgxrun-test-XXXXXX";
    if (mkdtemp(name) == nullptr) abort();
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace dgxrun

#endif  // DGXRUN_TESTS_UNIT_CONTROLLER_TEMP_DIR_H_
