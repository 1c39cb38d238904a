// A call that is too large for one sequence number, cut into several that give the same result.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/operation.hpp"
#include "engine/table.h"

namespace securecoll {

class Pieces {
 public:
  // Each rank's part is cut into `pieces` that differ by an element at most. The request must stay.
  Pieces(const sc_request& whole, uint32_t rank, uint32_t size, uint32_t pieces);
  // Elements of the largest piece of the largest part.
  uint64_t largest() const;
  // The call for one piece. Valid until the next.
  const sc_request& piece(uint32_t k);

 private:
  uint64_t cut(uint64_t part, uint32_t k) const { return part * k / pieces_; }
  void take(std::vector<sc_segment>& to, const Buffer& from, const std::vector<uint64_t>& parts, uint32_t k) const;

  const sc_request& whole_;
  uint32_t pieces_;
  uint64_t element_;
  std::vector<uint64_t> in_, out_;  // elements of the parts that each side holds, in rank order
  Buffer input_, output_;
  sc_request request_;
  std::vector<sc_segment> inputs_, outputs_;
  std::vector<uint64_t> send_counts_, recv_counts_;
};

}  // namespace securecoll
