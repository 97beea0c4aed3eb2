// The part of the CUDA driver's API that tilewise calls, on the host: a device's memory is the host's, a launch runs the
// kernel before it returns, streams and events are names without a meaning.

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "devices.h"
#include "launch.h"
#include "memory.h"

using namespace emulator;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Result {  // CUresult
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NOT_FOUND = 500,
    OUT_OF_RESOURCES = 701,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    LAUNCH_FAILED = 719,
};
struct ErrorName {
    Result result;
    const char *name, *description;
};
constexpr ErrorName ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "TILEWISE_EMULATED_DEVICE names no device that the emulator knows"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "no such kernel was compiled for the emulated device"},
    {OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};

// What a failed launch reported: the description of the next error that somebody asks for.
std::string last_failure;
thread_local void* current_context = nullptr;
thread_local std::vector<void*> pushed_contexts;
int the_context, the_module, the_event;
uint64_t seed = 0;
bool results_intact = true;  // nothing was written beside one of them

// The newest code that the device runs, of the folders sm_NN beside this library.
void load_kernels() {
    Dl_info here;
    dladdr(reinterpret_cast<void*>(&load_kernels), &here);
    const std::string path = here.dli_fname;
    const Device& d = *device();
    const std::string folder = path.substr(0, path.rfind('/')) + "/sm_" + std::to_string(d.major) + std::to_string(d.minor);
    DIR* listing = opendir(folder.c_str());
    if (listing == nullptr) return;
    while (const dirent* entry = readdir(listing)) {
        if (strstr(entry->d_name, ".so") == nullptr) continue;
        if (dlopen((folder + "/" + entry->d_name).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
            fprintf(stderr, "the emulator cannot load a kernel file: %s\n", dlerror());
        }
    }
    closedir(listing);
}

Result refuse(const KernelState& k, const std::string& why) {
    last_failure = std::string(k.kernel.name) + " cannot be launched: " + why;
    return OUT_OF_RESOURCES;
}

Result launch(KernelState& k, dim3 grid, dim3 block, unsigned dynamic_bytes, void** parameters, unsigned cluster = 1,
              bool cooperative = false, bool early = false) {
    const Device& d = *device();
    const uint64_t threads = uint64_t(block.x) * block.y * block.z;
    const auto words = [](dim3 v) {
        return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
    };
    if (grid.x == 0 || grid.x > 0x7fffffff || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535) {
        return refuse(k, "a grid of " + words(grid) + " blocks");
    }
    if (threads == 0 || threads > 1024 || block.z > 64) return refuse(k, "a block of " + words(block) + " threads");
    if (k.kernel.bounds.threads != 0 && threads > k.kernel.bounds.threads) {
        return refuse(k, std::to_string(threads) + " threads, where __launch_bounds__ says " +
                             std::to_string(k.kernel.bounds.threads));
    }
    if (dynamic_bytes > k.dynamic_limit || k.static_bytes + dynamic_bytes > unsigned(d.shared_per_block)) {
        return refuse(k, std::to_string(k.static_bytes) + " + " + std::to_string(dynamic_bytes) + " bytes of shared memory");
    }
    // Registers are handed out to warps in steps of 256.
    if ((threads + 31) / 32 * ((k.registers * 32 + 255) / 256 * 256) > 65536) {
        return refuse(k, std::to_string(k.registers) + " registers for each of " + std::to_string(threads) + " threads");
    }
    if (cluster != 1 && (d.major < 9 || cluster > (k.large_clusters ? 16 : 8) || grid.x % cluster != 0)) {
        return refuse(k, "a grid of " + words(grid) + " blocks in clusters of " + std::to_string(cluster));
    }
    if (cooperative) {
        if (cluster != 1 || grid.y != 1 || grid.z != 1) return refuse(k, "a cooperative grid of clusters, or of more dimensions");
        // The driver keeps 1 KB of shared memory for each block.
        const uint64_t bytes = k.static_bytes + dynamic_bytes + 1024, registers = (threads + 31) / 32 * k.registers * 32;
        uint64_t resident = std::min<uint64_t>(d.threads_per_multiprocessor / threads, d.shared_per_multiprocessor / bytes);
        if (registers > 0) resident = std::min(resident, 65536 / registers);
        if (grid.x > resident * usable_multiprocessors()) return COOPERATIVE_LAUNCH_TOO_LARGE;
        cluster = grid.x;
    }
    ++k.launches;
    std::atomic<bool> waits{false};
    last_failure =
        run_grid({k.kernel, grid, block, dynamic_bytes, parameters, seed++, cluster, k.registers, cooperative, &waits});
    if (last_failure.empty() && early && !waits) {
        last_failure = std::string(k.kernel.name) + " may begin before the launch before it is done, and does not wait for it";
    }
    return last_failure.empty() ? SUCCESS : LAUNCH_FAILED;
}

}  // namespace

// ------------------------------------------------------------------------------------------------ the driver

EXPORT Result cuInit(unsigned) {
    if (device() == nullptr) return NO_DEVICE;
    static const bool loaded = (load_kernels(), true);
    return loaded ? SUCCESS : NO_DEVICE;
}
EXPORT Result cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
EXPORT Result cuGetErrorName(Result error, const char** name) {
    for (const ErrorName& e : ERRORS) {
        if (e.result == error) return *name = e.name, SUCCESS;
    }
    return INVALID_VALUE;
}
EXPORT Result cuGetErrorString(Result error, const char** description) {
    if ((error == LAUNCH_FAILED || error == OUT_OF_RESOURCES) && !last_failure.empty()) {
        return *description = last_failure.c_str(), SUCCESS;
    }
    for (const ErrorName& e : ERRORS) {
        if (e.result == error) return *description = e.description, SUCCESS;
    }
    return INVALID_VALUE;
}

EXPORT Result cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
EXPORT Result cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}
EXPORT Result cuDeviceGetName(char* name, int length, int) {
    strncpy(name, device()->name, length);
    return SUCCESS;
}
EXPORT Result cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = device()->memory_bytes, SUCCESS; }
EXPORT Result cuDeviceGetAttribute(int* value, int attribute, int) {
    const Device& d = *device();
    switch (attribute) {
    case 1: *value = 1024; break;   // MAX_THREADS_PER_BLOCK
    case 8: *value = 49152; break;  // MAX_SHARED_MEMORY_PER_BLOCK
    case 10: *value = 32; break;    // WARP_SIZE
    case 16: *value = d.multiprocessors; break;
    case 38: *value = d.l2_bytes; break;
    case 39: *value = d.threads_per_multiprocessor; break;
    case 75: *value = d.major; break;
    case 76: *value = d.minor; break;
    case 81: *value = d.shared_per_multiprocessor; break;
    case 82: *value = 65536; break;  // MAX_REGISTERS_PER_MULTIPROCESSOR
    case 95: *value = 1; break;  // COOPERATIVE_LAUNCH
    case 97: *value = d.shared_per_block; break;
    case 106: *value = d.blocks_per_multiprocessor; break;
    default: *value = 0; break;  // clocks, and what else a driver may not say
    }
    return SUCCESS;
}

EXPORT Result cuDevicePrimaryCtxRetain(void** context, int) { return *context = &the_context, SUCCESS; }
EXPORT Result cuCtxGetCurrent(void** context) { return *context = current_context, SUCCESS; }
EXPORT Result cuCtxPushCurrent_v2(void* context) {
    pushed_contexts.push_back(current_context);
    current_context = context;
    return SUCCESS;
}
EXPORT Result cuCtxPopCurrent_v2(void** context) {
    if (pushed_contexts.empty()) return INVALID_VALUE;
    *context = current_context;
    current_context = pushed_contexts.back();
    pushed_contexts.pop_back();
    return SUCCESS;
}

EXPORT Result cuThreadExchangeStreamCaptureMode(int*) { return SUCCESS; }
EXPORT Result cuModuleLoadData(void** module, const void*) { return *module = &the_module, SUCCESS; }
EXPORT Result cuModuleGetFunction(KernelState** function, void*, const char* name) {
    const auto found = kernels().find(name);
    if (found == kernels().end()) return NOT_FOUND;
    *function = &found->second;
    return SUCCESS;
}
EXPORT Result cuFuncGetAttribute(int* value, int attribute, const KernelState* function) {
    switch (attribute) {
    case 0: *value = function->kernel.bounds.threads == 0 ? 1024 : function->kernel.bounds.threads; break;
    case 1: *value = function->static_bytes; break;
    case 4: *value = function->registers; break;
    case 5: *value = device()->major * 10 + device()->minor; break;  // PTX_VERSION
    case 8: *value = function->dynamic_limit; break;
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}
EXPORT Result cuFuncSetAttribute(KernelState* function, int attribute, int value) {
    if (attribute == 8) {  // MAX_DYNAMIC_SHARED_SIZE_BYTES
        if (value < 0 || value + int(function->static_bytes) > device()->shared_per_block) return INVALID_VALUE;
        function->dynamic_limit = value;
    }
    if (attribute == 14) {  // NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        if (device()->major < 9) return INVALID_VALUE;
        function->large_clusters = value != 0;
    }
    return SUCCESS;
}
EXPORT Result cuLaunchKernel(KernelState* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned dynamic_bytes, void*, void** parameters, void**) {
    return launch(*function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_bytes, parameters);
}

struct LaunchAttribute {
    int id;  // 2: COOPERATIVE, 4: CLUSTER_DIMENSION, 6: PROGRAMMATIC_STREAM_SERIALIZATION
    char pad[4];
    union {
        char bytes[64];
        unsigned cluster[3];
    };
};
struct LaunchConfig {
    unsigned grid[3], block[3], dynamic_bytes;
    void* stream;
    const LaunchAttribute* attributes;
    unsigned count;
};
EXPORT Result cuLaunchKernelEx(const LaunchConfig* c, KernelState* function, void** parameters, void**) {
    unsigned cluster = 1;
    bool cooperative = false, early = false;
    for (unsigned i = 0; i < c->count; ++i) {
        const LaunchAttribute& a = c->attributes[i];
        if (a.id == 2) {
            cooperative = a.cluster[0] != 0;
            continue;
        }
        if (a.id == 6) {
            early = a.cluster[0] != 0;
            continue;
        }
        if (a.id != 4 || a.cluster[0] == 0 || a.cluster[1] != 1 || a.cluster[2] != 1) return INVALID_VALUE;
        cluster = a.cluster[0];
    }
    const auto words = [](const unsigned(&v)[3]) { return dim3{v[0], v[1], v[2]}; };
    return launch(*function, words(c->grid), words(c->block), c->dynamic_bytes, parameters, cluster,
                  cooperative, early);
}

EXPORT Result cuStreamIsCapturing(void*, int* status) { return *status = 0, SUCCESS; }

EXPORT Result cuMemAllocAsync(void** address, std::size_t bytes, void*) {
    static unsigned allocations = 0;
    *address = allocate(bytes, 0, ++allocations % 3 != 0);
    return *address == nullptr ? OUT_OF_MEMORY : SUCCESS;
}
EXPORT Result cuMemFreeAsync(void* address, void*) {
    results_intact &= free_memory(address);
    return SUCCESS;
}

EXPORT Result cuEventCreate(void** event, unsigned) { return *event = &the_event, SUCCESS; }
EXPORT Result cuEventRecord(void*, void*) { return SUCCESS; }
EXPORT Result cuEventQuery(void*) { return SUCCESS; }
EXPORT Result cuEventDestroy_v2(void*) { return SUCCESS; }
EXPORT Result cuStreamWaitEvent(void*, void*, unsigned) { return SUCCESS; }

// --------------------------------------------------------------------------------------------- for the tests

EXPORT void* emulator_allocate(std::size_t bytes, unsigned residue, int at_end) { return allocate(bytes, residue, at_end); }
EXPORT int emulator_free(void* p) { return free_memory(p); }
// Whether all memory that the driver gave out and got back was intact, since the last time this was asked.
EXPORT int emulator_results_intact() { return std::exchange(results_intact, true); }
EXPORT void emulator_seal(void* p) { seal(p); }
EXPORT void emulator_seed(uint64_t value) { seed = value; }

// What ptxas found a kernel to need: limits of the device hold for that.
EXPORT void emulator_declare(const char* name, unsigned registers, unsigned static_bytes) {
    const auto found = kernels().find(name);
    if (found == kernels().end()) return;
    found->second.registers = registers;
    found->second.static_bytes = static_bytes;
}

// The name of each kernel and how often it was launched, one on a line.
EXPORT const char* emulator_launches() {
    static std::string text;
    text.clear();
    for (const auto& [name, state] : kernels()) text += name + " " + std::to_string(state.launches) + "\n";
    return text.c_str();
}
