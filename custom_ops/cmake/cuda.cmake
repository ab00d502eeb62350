# Finds the CUDA compiler and says how kernels are compiled: for which GPUs, and so that they give the CPU's bits.
#
# Sets ONNXFQ_CUDA_USED, and where it is ON the object library onnxfq_cuda_kernels and onnxfq_link_cuda(target).

set(ONNXFQ_CUDA_USED OFF)
if(ONNXFQ_CUDA STREQUAL "AUTO" OR ONNXFQ_CUDA)
  # Known before the language is enabled: enabling it would choose one GPU.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES OFF)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(ONNXFQ_CUDA_USED ON)
  elseif(NOT ONNXFQ_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "ONNXFQ_CUDA=ON, but there is no CUDA compiler; put nvcc on the PATH or set CUDACXX")
  endif()
endif()

if(NOT ONNXFQ_CUDA_USED)
  message(STATUS "onnxfq: without CUDA kernels (no CUDA compiler, or ONNXFQ_CUDA=OFF)")
  return()
endif()

# Code for one GPU runs on each later one of its generation: 8.0 serves 8.6 and 8.9, and 10.0 serves 10.3. The PTX of
# 10.0 is what drivers translate for Thor (11.0) and for what follows.
if(NOT ONNXFQ_CUDA_ARCHITECTURES)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    set(ONNXFQ_CUDA_ARCHITECTURES 75-real 80-real 90-real 100 120-real)
  else()
    set(ONNXFQ_CUDA_ARCHITECTURES 75-real 80-real 90)
  endif()
endif()
message(STATUS "onnxfq: CUDA ${CMAKE_CUDA_COMPILER_VERSION} kernels for ${ONNXFQ_CUDA_ARCHITECTURES}")

find_package(CUDAToolkit REQUIRED)
# The bits of the CPU: no fused operations but those that are written, true divisions and roots, subnormal numbers.
set(onnxfq_cuda_options
  -fmad=false -prec-div=true -prec-sqrt=true -ftz=false --expt-relaxed-constexpr
  "$<$<BOOL:${ONNXFQ_WERROR}>:-Werror=all-warnings>"
  "$<$<NOT:$<PLATFORM_ID:Windows>>:-Xcompiler=-ffp-contract=off,-Wall,-Wextra>")
# A fifth of the size; every driver that CUDA 13 runs on can read it.
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  list(APPEND onnxfq_cuda_options --compress-mode=size)
endif()

add_library(onnxfq_cuda_kernels OBJECT
  src/cuda/device_params.cc
  src/cuda/dynamic_fake_quantize.cu
  src/cuda/fake_quantize.cc
  src/cuda/fake_quantize_bfloat16.cu
  src/cuda/fake_quantize_float16.cu
  src/cuda/fake_quantize_float32.cu
  src/cuda/launch.cc
  src/cuda/merge_statistics.cu)
target_include_directories(onnxfq_cuda_kernels PRIVATE include)
target_include_directories(onnxfq_cuda_kernels SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_features(onnxfq_cuda_kernels PRIVATE cxx_std_17)
target_compile_options(onnxfq_cuda_kernels PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:${onnxfq_cuda_options}>" "$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>")
set_target_properties(onnxfq_cuda_kernels PROPERTIES
  CUDA_ARCHITECTURES "${ONNXFQ_CUDA_ARCHITECTURES}"
  CUDA_STANDARD 17
  CUDA_STANDARD_REQUIRED ON
  CUDA_VISIBILITY_PRESET hidden
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON
  POSITION_INDEPENDENT_CODE ON)

# The runtime is linked statically: the library loads where there is no driver, and its launches return an error.
function(onnxfq_link_cuda target)
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
