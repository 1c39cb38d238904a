#include "engine/pieces.hpp"

#include <algorithm>

#include "engine/codes.hpp"

namespace securecoll {

Pieces::Pieces(const sc_request& whole, uint32_t rank, uint32_t size, uint32_t pieces)
    : whole_(whole), pieces_(pieces), element_(element_bytes(static_cast<DType>(whole.dtype))), request_(whole) {
  std::vector<uint64_t> parts(size, whole.count);
  if (whole.send_counts) parts.assign(whole.send_counts, whole.send_counts + size);
  switch (static_cast<Collective>(whole.collective)) {
    case Collective::reduce_scatter:
    case Collective::scatter:
      in_ = parts;
      out_ = {parts[rank]};
      break;
    case Collective::all_gather:
    case Collective::gather:
      in_ = {parts[rank]};
      out_ = parts;
      break;
    case Collective::all_to_all:
      in_ = out_ = parts;
      if (whole.recv_counts) out_.assign(whole.recv_counts, whole.recv_counts + size);
      break;
    default:
      in_ = out_ = {whole.count};
  }
  input_.assign(whole.input, whole.inputs);
  output_.assign(whole.output, whole.outputs);
}

uint64_t Pieces::largest() const {
  uint64_t most = 0;
  for (const auto* parts : {&in_, &out_})
    for (uint64_t n : *parts) most = std::max(most, n);
  return (most + pieces_ - 1) / pieces_;
}

void Pieces::take(std::vector<sc_segment>& to, const Buffer& from, const std::vector<uint64_t>& parts,
                  uint32_t k) const {
  to.clear();
  if (!from.bytes()) return;  // a side that this rank has no part in
  uint64_t start = 0;
  for (uint64_t n : parts) {
    from.segments(to, (start + cut(n, k)) * element_, (cut(n, k + 1) - cut(n, k)) * element_);
    start += n;
  }
}

const sc_request& Pieces::piece(uint32_t k) {
  const auto length = [&](uint64_t part) { return cut(part, k + 1) - cut(part, k); };
  take(inputs_, input_, in_, k);
  take(outputs_, output_, out_, k);
  request_.input = inputs_.data();
  request_.inputs = static_cast<uint32_t>(inputs_.size());
  request_.output = outputs_.data();
  request_.outputs = static_cast<uint32_t>(outputs_.size());
  request_.count = length(whole_.count);
  if (whole_.send_counts) {
    const auto& sent = in_.size() > 1 ? in_ : out_;  // the side that holds every rank's part
    send_counts_.clear();
    for (uint64_t n : sent) send_counts_.push_back(length(n));
    request_.send_counts = send_counts_.data();
  }
  if (whole_.recv_counts) {
    recv_counts_.clear();
    for (uint64_t n : out_) recv_counts_.push_back(length(n));
    request_.recv_counts = recv_counts_.data();
  }
  return request_;
}

}  // namespace securecoll
