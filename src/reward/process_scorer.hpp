#pragma once
// A transport to a process: requests to its stdin and replies from its stdout as JSON lines
// (score_lines.hpp), its stderr to a log. It is started once and serves batch after batch; a failed attempt
// kills its process group, and the next attempt starts it anew. It should end when its stdin does.
#include <memory>
#include <string>
#include <vector>

#include "reward/external_scorer.hpp"

namespace accord::reward {

struct ProcessOptions {
  std::vector<std::string> command;  // argv; no shell
  std::string log_path;              // of its stderr, appended (error_log.hpp); empty: this process's stderr
  Cancelled cancelled;               // ends an attempt; may be empty
};

std::unique_ptr<Transport> make_process_transport(const ProcessOptions& options);

}  // namespace accord::reward
