#pragma once
// The compute capability of emulated devices: ACCORD_EMULATED_CAPABILITY (default 9.0).

namespace accord::emulation {

struct Capability {
  int major = 9;
  int minor = 0;
};

// 0.0, which no kernels are for, where the setting is none.
Capability capability();

}  // namespace accord::emulation
