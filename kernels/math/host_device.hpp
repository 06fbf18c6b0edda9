#pragma once
// Marks functions that host and device share; nothing to a C++ compiler. (constexpr functions need no mark.)
#ifdef __CUDACC__
#define ACCORD_HOST_DEVICE __host__ __device__
#else
#define ACCORD_HOST_DEVICE
#endif
