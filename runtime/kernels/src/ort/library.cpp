// What the shared library exports: the entry point that ONNX Runtime calls, and what ctypes can ask.
#include "ort/ort_api.h"

#ifndef SPECRUNTIME_KERNELS_VERSION
#define SPECRUNTIME_KERNELS_VERSION "0.0.0"
#endif

extern "C" {

SPECRUNTIME_EXPORT const char* specruntime_kernels_version() { return SPECRUNTIME_KERNELS_VERSION; }

// Version of the operators' attributes, inputs and arithmetic.
SPECRUNTIME_EXPORT int specruntime_kernels_operators() { return 1; }

// Version of the packed weights.
SPECRUNTIME_EXPORT int specruntime_kernels_layout() { return 1; }

SPECRUNTIME_EXPORT OrtStatus* ORT_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  (void)options;
  (void)base;
  return nullptr;
}
}
