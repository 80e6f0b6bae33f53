// What LibTorch and tutti ask the CUDA driver. All but the first few say that it cannot be done.
namespace {

constexpr int success = 0;
constexpr int not_supported = 801;

}  // namespace

extern "C" {

int cuInit(unsigned /*flags*/) {
  return success;
}
int cuDeviceGet(int* device, int /*index*/) {
  *device = 0;
  return success;
}
int cuDeviceGetName(char* name, int room, int /*device*/) {
  const char* from = "NVIDIA stand-in";
  for (; room > 1 && *from != '\0'; --room) {
    *name++ = *from++;
  }
  *name = '\0';
  return success;
}
int cuDevicePrimaryCtxGetState(int /*device*/, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return success;
}
int cuGetErrorString(int /*error*/, const char** text) {
  *text = "the stand-in has no such function";
  return success;
}

#define STAND_IN_HAS_NOT(name) \
  int name() {                 \
    return not_supported;      \
  }
STAND_IN_HAS_NOT(cuCtxGetCurrent)
STAND_IN_HAS_NOT(cuCtxSetCurrent)
STAND_IN_HAS_NOT(cuDeviceGetAttribute)
STAND_IN_HAS_NOT(cuDevicePrimaryCtxRetain)
STAND_IN_HAS_NOT(cuFuncGetAttribute)
STAND_IN_HAS_NOT(cuFuncSetAttribute)
STAND_IN_HAS_NOT(cuFuncSetCacheConfig)
STAND_IN_HAS_NOT(cuLaunchCooperativeKernel)
STAND_IN_HAS_NOT(cuLaunchKernel)
STAND_IN_HAS_NOT(cuLinkAddData_v2)
STAND_IN_HAS_NOT(cuLinkComplete)
STAND_IN_HAS_NOT(cuLinkCreate_v2)
STAND_IN_HAS_NOT(cuModuleGetFunction)
STAND_IN_HAS_NOT(cuModuleLoad)
STAND_IN_HAS_NOT(cuModuleLoadData)
STAND_IN_HAS_NOT(cuModuleLoadDataEx)
STAND_IN_HAS_NOT(cuModuleUnload)
STAND_IN_HAS_NOT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
STAND_IN_HAS_NOT(cuPointerGetAttribute)
STAND_IN_HAS_NOT(cuTensorMapEncodeTiled)
#undef STAND_IN_HAS_NOT

}  // extern "C"
