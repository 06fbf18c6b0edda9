#pragma once
// Scratch memory of CPU kernels: buffers that grow to the largest use and stay, so that a steady state
// allocates nothing. One Workspace serves one task at a time; a WorkspacePool hands them to whichever
// threads run tasks.
#include <memory>
#include <mutex>
#include <vector>

#include "device/buffer.hpp"
#include "device/thread_pool.hpp"

namespace accord::kernels {

struct Workspace {
  Buffer panel;       // decoded weight rows
  Buffer panel_rows;  // their pointers
  Buffer tile;        // fp32 outputs before the epilogue
  Buffer codes;       // quantized activations on their way to the operand
  Buffer code_scales;
  Buffer operand;  // fp32 operand rows of a task
  Buffer operand_rows;
  Buffer operand_outer;
  Buffer attention;  // query, score and accumulator tiles
  Buffer attention_kv;
};

class WorkspacePool {
 public:
  // Returns its workspace to the pool at the end of its life.
  class Lease {
   public:
    Lease(WorkspacePool& pool, std::unique_ptr<Workspace> workspace);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const { return *workspace_; }
    Workspace* operator->() const { return workspace_.get(); }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<Workspace> workspace_;
  };

  Lease acquire();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

}  // namespace accord::kernels
