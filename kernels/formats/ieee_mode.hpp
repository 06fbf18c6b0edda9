#pragma once
// The contract's arithmetic is IEEE fp32 with subnormals, round to nearest even. A library in the same
// process may have switched the calling thread to flush-to-zero; the quantizers switch back while they run.

namespace accord::formats {

class IeeeMode {
 public:
  IeeeMode();   // default control bits of this thread's vector unit
  ~IeeeMode();  // the caller's again
  IeeeMode(const IeeeMode&) = delete;
  IeeeMode& operator=(const IeeeMode&) = delete;

 private:
  unsigned saved_;
};

}  // namespace accord::formats
