// A CUDA runtime without a GPU, for torch's own allocator: memory is a counter, addresses are handed out upwards and
// never used. Built as libcudart.so.13 with stubs, that return 0, for the functions that are not here.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

namespace {
constexpr size_t kPage = size_t{2} << 20;
size_t used = 0, next_address = size_t{1} << 44, next_handle = 1;
std::map<size_t, size_t> segments, handles;

size_t capacity() {
  static const size_t bytes = strtoull(getenv("DEVICE_BYTES"), nullptr, 10);
  return bytes;
}
bool take(size_t bytes) {
  if (used + bytes > capacity()) return false;
  used += bytes;
  return true;
}
size_t addresses(size_t bytes) {
  const size_t address = next_address;
  next_address += (bytes + kPage - 1) / kPage * kPage;
  return address;
}
CUresult reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *address = addresses(bytes);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*, unsigned long long) {
  if (!take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  handles[*handle = next_handle++] = bytes;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  used -= handles.at(handle);
  handles.erase(handle);
  return CUDA_SUCCESS;
}
CUresult granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kPage;
  return CUDA_SUCCESS;
}
CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult name_error(CUresult, const char** text) {
  *text = "an error of the made-up device";
  return CUDA_SUCCESS;
}
CUresult nothing() { return CUDA_SUCCESS; }
}  // namespace

extern "C" {
cudaError_t cudaMalloc(void** address, size_t bytes) {
  if (!take(bytes)) return cudaErrorMemoryAllocation;
  const size_t at = addresses(bytes);
  segments[at] = bytes;
  *address = reinterpret_cast<void*>(at);
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  const auto found = segments.find(reinterpret_cast<size_t>(address));
  if (found == segments.end()) return cudaSuccess;
  used -= found->second;
  segments.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = capacity() - used;
  *total = capacity();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  memset(properties, 0, sizeof *properties);
  properties->totalGlobalMem = capacity();
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the made-up device"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorMadeUp"; }
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** entry, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string_view, void*> entries{
      {"cuMemAddressReserve", (void*)reserve}, {"cuMemCreate", (void*)create}, {"cuMemRelease", (void*)release},
      {"cuMemGetAllocationGranularity", (void*)granularity}, {"cuDeviceGetAttribute", (void*)attribute},
      {"cuGetErrorString", (void*)name_error}};
  const auto found = entries.find(name);
  *entry = found == entries.end() ? (void*)nothing : found->second;
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}
