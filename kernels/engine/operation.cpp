#include "engine/operation.hpp"

#include <algorithm>

namespace securecoll {

void Buffer::assign(const sc_segment* segments, uint32_t count) {
  segments_.clear();
  starts_.clear();
  bytes_ = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (!segments[i].bytes) continue;
    segments_.push_back(segments[i]);
    starts_.push_back(bytes_);
    bytes_ += segments[i].bytes;
  }
}

size_t Buffer::find(uint64_t offset) const {
  if (starts_.size() == 1) return 0;
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin()) - 1;
}

uint8_t* Buffer::contiguous(uint64_t offset, uint64_t length) const {
  if (segments_.empty()) return nullptr;
  const size_t i = find(offset);
  const uint64_t within = offset - starts_[i];
  if (within + length > segments_[i].bytes) return nullptr;
  return static_cast<uint8_t*>(segments_[i].data) + within;
}

bool Buffer::holds(const void* at) const {
  return std::any_of(segments_.begin(), segments_.end(), [at](const sc_segment& s) {
    return reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(s.data) < s.bytes;
  });
}

template <class F>
void Buffer::each(uint64_t offset, uint64_t length, F f) const {
  if (!length) return;
  for (size_t i = find(offset); length; i++) {
    const uint64_t within = offset - starts_[i];
    const uint64_t n = std::min(length, segments_[i].bytes - within);
    f(static_cast<uint8_t*>(segments_[i].data) + within, n);
    offset += n;
    length -= n;
  }
}

void Buffer::gather(Memory& memory, Queue queue, uint64_t offset, uint64_t length, uint8_t* to) const {
  each(offset, length, [&](uint8_t* at, uint64_t n) {
    memory.copy(queue, to, at, n);
    to += n;
  });
}

void Buffer::scatter(Memory& memory, Queue queue, uint64_t offset, uint64_t length, const uint8_t* from) const {
  each(offset, length, [&](uint8_t* at, uint64_t n) {
    memory.copy(queue, at, from, n);
    from += n;
  });
}

void Buffer::segments(std::vector<sc_segment>& to, uint64_t offset, uint64_t length) const {
  each(offset, length, [&](uint8_t* at, uint64_t n) { to.push_back({at, n}); });
}

void Buffer::zero(Memory& memory) const noexcept {
  for (const sc_segment& s : segments_) memory.zero(s.data, s.bytes);
}

std::string Call::text() const {
  std::string s = name_of(collective);
  if (collective == Collective::barrier) return s + "()";
  s += "(";
  if (dtype != DType::none) s += std::string(name_of(dtype)) + "[" + std::to_string(count) + "]";
  if (collective == Collective::send || collective == Collective::receive) {
    if (dtype != DType::none) s += ", ";
    s += (collective == Collective::send ? "to=" : "from=") + (root == kAnySource ? "any" : std::to_string(root));
    if (dtype != DType::none) s += ", tag=" + std::to_string(tag);
    return s + ")";
  }
  if (redop != RedOp::none) s += std::string(", ") + name_of(redop);
  switch (collective) {
    case Collective::broadcast:
    case Collective::reduce:
    case Collective::gather:
    case Collective::scatter:
      s += ", root=" + std::to_string(root);
      break;
    default:
      break;
  }
  return s + ")";
}

}  // namespace securecoll
