#pragma once
// CUDA's stream and event as opaque pointers (cudaStream_t and cudaEvent_t are these very types), so that
// headers of other rooms need no CUDA header. nullptr is the CPU's "stream".

struct CUstream_st;
struct CUevent_st;

namespace accord {

using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;

}  // namespace accord
