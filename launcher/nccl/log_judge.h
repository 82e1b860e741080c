// The NCCL logs of a job's ranks against what was expected: a pure function. The controller calls it whenever
// a RankLog changes and says each warning once; the fix is in the text.
#ifndef DGXRUN_LAUNCHER_NCCL_LOG_JUDGE_H_
#define DGXRUN_LAUNCHER_NCCL_LOG_JUDGE_H_

#include <string>
#include <utility>
#include <vector>

#include "launcher/nccl/choose_network.h"
#include "launcher/nccl/log.h"

namespace dgxrun::nccl {

struct LogExpectation {
  Transport transport = Transport::kSocket;
  std::vector<std::string> interfaces;  // that may carry data over sockets, as chosen; empty: any
  bool gdr = false;                     // GPUDirect RDMA is to be had: RDMA, GPUs, peer memory or dma-buf
  bool nvlink = false;                  // GPUs of one node have NVLink to each other
};

struct LogFinding {
  std::string rule;        // "socket", "interface", "no-gdr", "no-nvlink", "disagree", "version", "warning"
  std::vector<int> ranks;  // the launcher's, ascending
  std::string message;
  std::string fix;
};

// `logs`: the launcher's rank and its log; a rank without a log yet is left out. Ordered by rule.
std::vector<LogFinding> JudgeLogs(const std::vector<std::pair<int, RankLog>>& logs,
                                  const LogExpectation& expected);

// "IB: mlx5_0:1, mlx5_3:1 (GDR)", "Socket: eth0", "P2P/CUMEM": for a line of status. Empty: nothing known
// yet.
std::string TransportText(const RankLog& log);

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_LOG_JUDGE_H_
