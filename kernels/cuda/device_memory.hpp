// Device memory behind the engine's memory seam: payload bytes stay on the device, and only ciphertext leaves it.
//
// Staged, which works everywhere: a record is sealed into a bounce buffer on the device and copied from there into the
// lane's slot; the peer copies its slot into a bounce buffer on its device, once, and opens it there. Mapped, where
// the device can reach host memory: kernels write and read the slots themselves.
//
// Two queues of kernels, sending and receiving, and one for copies each way, so that copies, sealing and opening of
// different chunks overlap. Records that need the same kernel and do not depend on each other go in one launch.
//
// A record that does not verify sets the device's status word before anything could use it: what was to be committed
// is not, and nothing is sealed any more. The host learns of it with the record's ticket.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "engine/memory.hpp"
#include "engine/segment.hpp"

namespace securecoll::cuda {

struct DeviceMemoryOptions {
  uint32_t slot_bytes = 0;             // payload of a lane's slot
  uint32_t on_their_way = 32;          // records at most, each way
  uint32_t ctas = 32;                  // of one launch, at most
  bool mapped = true;                  // where the device can
  bool copies_block = false;           // calls that copy return when the copy is done
  std::vector<Segment::Range> ranges;  // where slots lie
};

// Throws EngineError: config, when the device has too little memory or lacks a kernel.
std::unique_ptr<Memory> device_memory(std::shared_ptr<Device> device, const DeviceMemoryOptions& options);

// "mapped", "mapped for sending" or "staged", and why, for the log.
std::string device_mode(const Memory& memory);

}  // namespace securecoll::cuda
