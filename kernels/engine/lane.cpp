#include "engine/lane.hpp"

#include <algorithm>
#include <utility>

namespace securecoll {

ShmLaneWriter::ShmLaneWriter(Word* head, uint8_t* slots, uint64_t stride, uint64_t depth, std::vector<Reader> readers)
    : head_(head),
      slots_(slots),
      stride_(stride),
      depth_(depth),
      free_until_(depth),
      readers_(std::move(readers)),
      seen_(readers_.size(), 0) {}

uint8_t* ShmLaneWriter::acquire() {
  if (position_ >= free_until_) {
    uint64_t least = position_;
    for (size_t i = 0; i < readers_.size(); i++) {
      const uint64_t tail = readers_[i].tail->value.load(std::memory_order_acquire);
      // A reader has read no more than was sent, and never un-reads.
      if (tail < seen_[i] || tail > published_) {
        violated_ = true;
        return nullptr;
      }
      seen_[i] = tail;
      least = std::min(least, tail);
    }
    free_until_ = least + depth_;
    if (position_ >= free_until_) return nullptr;
  }
  return slots_ + position_ % depth_ * stride_;
}

void ShmLaneWriter::publish() {
  head_->value.store(++published_, std::memory_order_release);
  // Order the store before the look at the bell: else a reader that goes to sleep now is missed (it would look again
  // by itself, but only after its recheck interval).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Reader& r : readers_) ring(r.bell);
}

void ShmLaneWriter::laggards(std::vector<uint32_t>& ranks) const {
  for (size_t i = 0; i < readers_.size(); i++)
    if (seen_[i] + depth_ <= published_) ranks.push_back(readers_[i].rank);
}

ShmLaneReader::ShmLaneReader(uint32_t writer, const Word* head, const uint8_t* slots, uint64_t stride, uint64_t depth,
                             Word* tail, const Bell* bell)
    : writer_(writer), head_(head), slots_(slots), stride_(stride), depth_(depth), tail_(tail), bell_(bell) {}

const uint8_t* ShmLaneReader::peek(uint32_t) {
  if (position_ == seen_) {
    const uint64_t head = head_->value.load(std::memory_order_acquire);
    if (head < seen_ || head - released_ > depth_) {
      violated_ = true;
      return nullptr;
    }
    seen_ = head;
    if (position_ == seen_) return nullptr;
  }
  return slots_ + position_ % depth_ * stride_;
}

void ShmLaneReader::release() {
  tail_->value.store(++released_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring(bell_);
}

}  // namespace securecoll
