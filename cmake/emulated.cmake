# ACCORD_CUDA_EMULATED=ON: every room's *_cuda.cpp, as ACCORD_CUDA has them, over tests/emulation: a device room
# whose devices are host memory, and kernels::cuda functions over the CPU's kernels. Tests of what the CUDA path
# does around its kernels then run where no GPU is.

# Of a room's sources, those that this build compiles. Assertions stay on in the files under test.
function(accord_emulated_sources list)
  set(sources ${${list}})
  list(FILTER sources EXCLUDE REGEX "/(device/backend_cuda|comm/nccl_of_this_build|block_scaled/cublaslt_of_this_build)\\.cpp$")
  foreach(source ${sources})
    if(source MATCHES "_cuda\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -UNDEBUG)
    endif()
  endforeach()
  set(${list} ${sources} PARENT_SCOPE)
endfunction()

# Called after the rooms exist.
function(accord_emulate_cuda)
  file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/emulation/kernels_*.cpp)
  set(sampler ${CMAKE_SOURCE_DIR}/tests/emulation/kernels_sampler.cpp)
  list(REMOVE_ITEM kernels ${sampler})
  set(backend backend.cpp capability.cpp launch.cpp memory.cpp)
  list(TRANSFORM backend PREPEND ${CMAKE_SOURCE_DIR}/tests/emulation/)
  # A function that no header declares (any more) would be an overload that nobody calls.
  set_source_files_properties(${backend} ${kernels} ${sampler} PROPERTIES
    COMPILE_OPTIONS "-UNDEBUG;-Wmissing-declarations")
  target_sources(accord_device PRIVATE ${backend})
  target_sources(accord_kernels PRIVATE ${kernels} ${CMAKE_SOURCE_DIR}/tests/emulation/cublaslt.cpp
    ${CMAKE_SOURCE_DIR}/tests/support/fake_cublaslt.cpp)
  target_include_directories(accord_kernels PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_sources(accord_rollout PRIVATE ${sampler}) # it draws with that room's sampler
  target_sources(accord_comm PRIVATE ${CMAKE_SOURCE_DIR}/tests/emulation/nccl.cpp
    ${CMAKE_SOURCE_DIR}/tests/support/fake_nccl.cpp)
  target_include_directories(accord_comm PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(accord_device PUBLIC ACCORD_WITH_CUDA=1 PRIVATE ACCORD_CUDA_EMULATED=1)
endfunction()
