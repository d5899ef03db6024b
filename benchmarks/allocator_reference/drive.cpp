// Feeds torch's caching allocator from standard input: "m NAME BYTES STREAM", "f NAME", "e" (empty_cache).
// Prints for each line: address (-1: out of memory, 0: none), bytes reserved, bytes allocated.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include <cstdio>
#include <unordered_map>

using namespace c10::cuda::CUDACachingAllocator;

int main() {
  c10::cuda::detail::init_p2p_access_cache(1);
  CUDAAllocatorConfig::set_expandable_segments_handle_type(Expandable_Segments_Handle_Type::POSIX_FD);
  init(1);
  std::unordered_map<long, void*> live;
  char what = 0;
  while (scanf(" %c", &what) == 1) {
    long name = 0, stream = 0, address = 0;
    size_t bytes = 0;
    if (what == 'm' && scanf("%ld %zu %ld", &name, &bytes, &stream) == 3) {
      try {
        live[name] = get()->raw_alloc_with_stream(bytes, reinterpret_cast<cudaStream_t>(stream));
        address = reinterpret_cast<long>(live[name]);
      } catch (const c10::OutOfMemoryError&) {
        address = -1;
      }
    } else if (what == 'f' && scanf("%ld", &name) == 1) {
      if (const auto found = live.find(name); found != live.end()) {
        get()->raw_delete(found->second);
        live.erase(found);
      }
    } else if (what == 'e') {
      emptyCache();
    }
    const auto stats = getDeviceStats(0);
    printf("%ld %ld %ld\n", address, long(stats.reserved_bytes[0].current), long(stats.allocated_bytes[0].current));
  }
}
