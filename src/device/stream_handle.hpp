#pragma once
// CUDA's stream, event and executable graph as opaque pointers (cudaStream_t, cudaEvent_t and cudaGraphExec_t
// are these very types), so that headers of other rooms need no CUDA header. nullptr is the CPU's "stream".

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace accord {

using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using GraphHandle = CUgraphExec_st*;

}  // namespace accord
