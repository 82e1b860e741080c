// No GPU is used by living ranks of two attempts at one instant.
#include <map>

#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class GpuOwners : public Oracle {
 public:
  const char* name() const override { return "gpu"; }
  void OnStart(const Process& p) override {
    const std::string who = p.job + "." + std::to_string(p.attempt);
    for (const std::string& gpu : p.gpus) {
      std::map<std::string, int>& users = users_[gpu];
      for (const auto& [other, count] : users) {
        if (other != who && count > 0) Complain(gpu + " is used by " + who + " and by " + other);
      }
      users[who]++;
    }
  }
  void OnDeath(const Process& p) override {
    for (const std::string& gpu : p.gpus) users_[gpu][p.job + "." + std::to_string(p.attempt)]--;
  }

 private:
  std::map<std::string, std::map<std::string, int>> users_;
};

}  // namespace

std::unique_ptr<Oracle> MakeGpuOracle() { return std::make_unique<GpuOwners>(); }

}  // namespace dgxrun::sim
