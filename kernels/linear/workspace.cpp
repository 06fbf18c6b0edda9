#include "kernels/linear/workspace.hpp"

#include <utility>

namespace accord::kernels {

WorkspacePool::Lease::Lease(WorkspacePool& pool, std::unique_ptr<Workspace> workspace)
    : pool_(pool), workspace_(std::move(workspace)) {}

WorkspacePool::Lease::~Lease() {
  const std::lock_guard lock(pool_.mutex_);
  pool_.free_.push_back(std::move(workspace_));
}

WorkspacePool::Lease WorkspacePool::acquire() {
  std::unique_ptr<Workspace> workspace;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      workspace = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!workspace) {
    workspace = std::make_unique<Workspace>();
  }
  return {*this, std::move(workspace)};
}

}  // namespace accord::kernels
