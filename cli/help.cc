#include "cli/help.h"

#include <map>

namespace dgxrun::cli {
namespace {

constexpr char kMain[] = R"(dgxrun: launches, watches and resumes multi-node GPU jobs

  dgxrun [options] script.py [args...]      run a script; what follows the script belongs to it
  dgxrun run [options] script.py [args...]  the same; for a script that is called like a subcommand
  dgxrun status|nodes|logs|why ...          look at jobs
  dgxrun attach|stop ...                    the console of a job that runs; stop one
  dgxrun ckpt ls|verify|pin|prune DIR       the checkpoints of a folder, judged
  dgxrun dev up|down|status                 a cluster of real processes on this machine
  dgxrun cluster init DIR                   certificates and first files of a cluster over the network
  dgxrun cluster check NAME|FILE            is a cluster file right?

Examples
  dgxrun -g 2 train.py --lr 3e-4            this machine, 2 ranks; nothing to set up
  dgxrun -g all train.py                    one rank per GPU of this machine
  dgxrun dev up -n 2; dgxrun -n 2 -g 2 train.py
  dgxrun -n 2 -g 8 --ckpt-dir ckpt --resume-arg '--resume {}' train.py
  dgxrun -g 4 -m mypackage.train            a module
  dgxrun -g 2 --no-python ./a.out           any program

Where
  -n, -N, --nodes K        nodes of a cluster. Without -n and --cluster: this machine
  -g, --gpus-per-node N    ranks per node, one GPU each; "all": one per GPU. Default 1.
      --nproc-per-node N   the same, as torchrun calls it
      --cluster NAME|FILE  the cluster. Else: $DGXRUN_CLUSTER, ~/.config/dgxrun/cluster.toml,
                           /etc/dgxrun/cluster.toml, the dev cluster
      --device auto|gpu|cpu  auto: GPUs where the PCI bus has any, else the CPU

Peers: the same command on every node, as with torchrun (docs/peers.md)
      --rdzv-endpoint HOST[:PORT]  where the processes meet; port 29400 if none is given
      --nnodes N           as -n; --nproc-per-node auto|gpu|cpu: one rank per GPU, or per usable CPU
      --node-rank K        place of this node; 0 is the endpoint. Else: the machine that HOST names
      --rdzv-id ID, --rdzv-backend c10d|static, --join-timeout TIME (600s), --orphan-timeout TIME (60s)

What
  -m, --module             the script is a Python module
      --no-python          the script is any program
      --name NAME          a name for the job, to use in place of its id
      --export RULE        ALL (default), NONE, or NAME,NAME=VALUE: variables that go along

When it fails
      --max-restarts N     restarts of the whole job; default 3
      --ckpt-dir DIR       the newest complete checkpoint in it is given to each attempt as
                           DGXRUN_RESUME_FROM and DGXRUN_RESUME_STEP (docs/checkpoints.md)
      --resume-arg 'WORDS' added to the command when there is a checkpoint; {} is its path, {step} its step
      --on-reset warn|stop steps that begin far below the checkpoint: say so (default), or stop the job
      --last-step N        an exit with 0 far below this step is called suspicious
      --ckpt-keep LAST[,EVERY]  while training, remove complete ones but the newest LAST and each EVERYth step
      --elastic MIN        go on with as few nodes when one is lost, if the checkpoint can be loaded so
      --grace TIME         from SIGTERM to SIGKILL; default 30s

Output
      --log-all            show all ranks, also above 16 ranks
      --detach             on a cluster: print the job's id and leave it running; dgxrun attach comes back
      --help, --version

Exit code: 0, the first failing rank's own, 128 + signal, or 64 usage, 69 unreachable, 70 internal,
75 preempted, 76 hang, 77 denied, 78 configuration. Ctrl-C stops the job, twice: at once.
)";

constexpr char kStatus[] = R"(dgxrun status [JOB] [--all] [--json] [--cluster NAME|FILE]

The state of a job: JOB is an id or a name; without it, the latest. Local, running and ended jobs answer.
  --all      one line per job, newest first
  --json     for programs; names and states are listed in docs/states.md
)";
constexpr char kNodes[] = R"(dgxrun nodes [--json] [--cluster NAME|FILE]
dgxrun nodes fence NODE --is-off [--json] [--cluster NAME|FILE]

The nodes of the cluster, their state, GPUs and jobs. Without a cluster: this machine.
  fence NODE --is-off   your word, as root, that a lost node is off: its jobs start elsewhere. Look first:
                        if it still runs, two attempts of a job run at once. status says when a job waits for it
)";
constexpr char kLogs[] = R"(dgxrun logs [JOB] [-r RANKS] [-f] [--attempt N] [--cluster NAME|FILE]

What the ranks of a job wrote: lines of stdout to stdout, of stderr to stderr.
  -r, --ranks RANKS   only these: 3 or 0,2 or 0-7,9
  -f, --follow        go on until the job has ended
      --attempt N     of that attempt (from 0), with -f from it on; default: the current or last one
)";
constexpr char kWhy[] = R"(dgxrun why [JOB] [--json] [--cluster NAME|FILE]

What ended a job, or its last attempt: which rank on which node, what happened, and the last lines of its
stderr.
)";
constexpr char kAttach[] = R"(dgxrun attach [JOB] [--log-all] [--cluster NAME|FILE]

The console of a job that runs on a cluster: its last lines, what it writes from now on, and at its end the
summary and its exit code, as if it had been started here. Without JOB: the latest that runs.

Ctrl-C and SIGTERM stop the job, a second one at once. Hang-up, or the end of this program, leave it running.
While the controller is away it is tried again for 2 minutes; no line is lost or shown twice.
  --log-all  show all ranks, also above 16 ranks
)";
constexpr char kStop[] = R"(dgxrun stop [JOB] [--grace TIME] [--cluster NAME|FILE]

Stops a job on all nodes: SIGTERM, then SIGKILL after the job's grace, or TIME if that is shorter. Returns
when nothing of it runs any more. Without JOB: the latest that runs.
)";
constexpr char kCkpt[] = R"(dgxrun ckpt ls DIR [--deep] [--json]
dgxrun ckpt verify PATH... [--deep] [--json]
dgxrun ckpt pin DIR [NAME...] [--remove]
dgxrun ckpt prune DIR --keep-last N [--keep-every N] [--dry-run] [--json]

The checkpoints of a folder, newest first, with format and verdict (docs/checkpoints.md). Works here, with your
rights, whether or not a job runs.
  ls       a table
  verify   the same, of folders or single checkpoints; exit code 1 if the newest of any is not COMPLETE
  pin      those named stay, whatever is pruned; without a name: what is pinned
  prune    removes complete ones but the newest N, each Nth step, what is pinned and what a pointer names
  --deep   read every byte and check the CRCs that the files hold
)";
constexpr char kDev[] =
    R"(dgxrun dev up [-n NODES]   start a controller and agents node1..nodeN on this machine, or what is missing
dgxrun dev down            stop its jobs, then its processes
dgxrun dev status [--json]

A job with -n uses it when no other cluster is set. Its files: dev/ in the state folder
($DGXRUN_STATE_DIR, else ~/.local/state/dgxrun).
)";
constexpr char kCluster[] =
    R"(dgxrun cluster init DIR [--name NAME] [--host NAME|ADDRESS ...] [--user NAME ...]

Makes in DIR a certificate authority, certificates for the controller, the agents and each user, and the
files controller.toml, agent.toml and cluster.toml to start from. Overwrites nothing.
  --host   name or address under which nodes and users reach the controller; the first one is dialled
  --user   accounts that get a certificate; default: yours

dgxrun cluster check NAME|FILE

Reads a cluster file, of the controller, an agent or a user, resolves the names in it and looks whether its
certificates can be read, belong together and are in force. Prints ok, or what is wrong and where; dials nobody.
)";

}  // namespace

std::string HelpText(const std::string& command) {
  static const std::map<std::string, const char*> kTexts = {
      {"status", kStatus}, {"nodes", kNodes}, {"logs", kLogs}, {"why", kWhy},         {"attach", kAttach},
      {"stop", kStop},     {"ckpt", kCkpt},   {"dev", kDev},   {"cluster", kCluster},
  };
  const auto it = kTexts.find(command);
  return it == kTexts.end() ? kMain : it->second;
}

std::string VersionText() { return "dgxrun " DGXRUN_VERSION "\n"; }

}  // namespace dgxrun::cli
