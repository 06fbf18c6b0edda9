# ACCORD_CUDA=ON: the kernels for Hopper (sm_90a) and Blackwell (sm_100f: 10.0 and 10.3). Compiling needs nvcc, not a
# GPU, and the program runs without a driver: the CUDA runtime is linked statically and looks for one when first used.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(ACCORD_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(ACCORD_NVCC)
    set(CMAKE_CUDA_COMPILER ${ACCORD_NVCC})
  endif()
endif()
set(ACCORD_CUDA_ARCHITECTURES 90a-real 100f-real CACHE STRING "Architectures of *_cuda.cu; one is for work on a kernel")
set(CMAKE_CUDA_ARCHITECTURES 90a-real) # for CMake's own trials, which know no family before 3.31; targets name theirs
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know how to ask nvcc for C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
find_package(CUDAToolkit 13.0 REQUIRED)

# Flags of .cu files, as accord_flags has those of C++. The contract's arithmetic (docs/contract.md): nothing
# contracts, true division and square root, subnormals kept. Shared scalar functions are constexpr, which device
# code may then call. scripts/check_kernels reads the device code back, so it is not compressed.
add_library(accord_cuda_flags INTERFACE)
target_compile_options(accord_cuda_flags INTERFACE
  -fmad=false -prec-div=true -prec-sqrt=true -ftz=false --expt-relaxed-constexpr
  --no-compress --Werror=all-warnings
  "-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off,-fno-fast-math,-march=x86-64-v3")

# accord_kernel_objects(<target> <architectures...>): an object library of the files named *_<target>.cu under
# kernels/, linked into the room.
function(accord_kernel_objects suffix)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*_${suffix}.cu)
  if(NOT sources)
    return()
  endif()
  add_library(accord_kernels_${suffix} OBJECT ${sources})
  set_target_properties(accord_kernels_${suffix} PROPERTIES CUDA_ARCHITECTURES "${ARGN}")
  target_include_directories(accord_kernels_${suffix} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  target_link_libraries(accord_kernels_${suffix} PRIVATE accord_cuda_flags)
  target_sources(accord_kernels PRIVATE $<TARGET_OBJECTS:accord_kernels_${suffix}>)
  list(APPEND ACCORD_KERNEL_TARGETS accord_kernels_${suffix})
  set(ACCORD_KERNEL_TARGETS ${ACCORD_KERNEL_TARGETS} PARENT_SCOPE)
endfunction()

# Called after the rooms kernels and device exist.
function(accord_kernels_on_cuda)
  accord_kernel_objects(cuda ${ACCORD_CUDA_ARCHITECTURES})
  accord_kernel_objects(sm90 90a-real)
  accord_kernel_objects(sm100 100f-real)
  accord_kernel_objects(sm100a 100a-real 103a-real) # what a family-specific target does not have
  set_property(GLOBAL PROPERTY ACCORD_KERNEL_TARGETS ${ACCORD_KERNEL_TARGETS})
  target_compile_definitions(accord_device PUBLIC ACCORD_WITH_CUDA=1)
  target_link_libraries(accord_device PRIVATE CUDA::cudart_static)
  # libtorch brings a shared CUDA runtime of its own, which must not find this one's symbols.
  target_link_options(accord_device INTERFACE LINKER:--exclude-libs,libcudart_static.a)
endfunction()
