// The first manual: texts of --help and --version.
#ifndef DGXRUN_CLI_HELP_H_
#define DGXRUN_CLI_HELP_H_

#include <string>

namespace dgxrun::cli {

// `command`: "" for dgxrun itself, or a subcommand ("status", "dev", ...). Unknown: dgxrun's own.
std::string HelpText(const std::string& command);
std::string VersionText();

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_HELP_H_
