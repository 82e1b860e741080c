// The line of an agent to a controller in the same process: joins the two interfaces, which do not know
// each other. The controller outlives it.
#ifndef DGXRUN_CLI_IN_PROCESS_LINE_H_
#define DGXRUN_CLI_IN_PROCESS_LINE_H_

#include <memory>

#include "agent/controller_line.h"
#include "controller/in_process.h"

namespace dgxrun::cli {

std::shared_ptr<agent::ControllerLine> MakeInProcessLine(InProcess* controller);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_IN_PROCESS_LINE_H_
