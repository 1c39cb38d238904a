#include "emulator/module.hpp"

#include <link.h>

#include <utility>
#include <vector>

namespace securecoll::emulator {
namespace {

using Ranges = std::vector<std::pair<uintptr_t, uintptr_t>>;

int collect(dl_phdr_info* info, size_t, void* out) {
  Ranges ranges;
  bool ours = false;
  const auto self = reinterpret_cast<uintptr_t>(&module_holds);
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) & segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t start = info->dlpi_addr + segment.p_vaddr;
    ranges.emplace_back(start, start + segment.p_memsz);
    ours = ours || (self >= start && self < start + segment.p_memsz);
  }
  if (ours) *static_cast<Ranges*>(out) = ranges;
  return ours;
}

Ranges find_ranges() {
  Ranges ranges;
  dl_iterate_phdr(collect, &ranges);
  return ranges;
}

}  // namespace

bool module_holds(uintptr_t at, size_t bytes) {
  static const Ranges ranges = find_ranges();
  for (const auto& [start, end] : ranges) {
    if (at >= start && at < end && bytes <= end - at) return true;
  }
  return false;
}

}  // namespace securecoll::emulator
