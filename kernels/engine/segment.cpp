#include "engine/segment.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "engine/error.hpp"
#include "engine/fork.hpp"
#include "engine/random.hpp"
#include "engine/wire.hpp"

namespace securecoll {
namespace {

constexpr char kDirectory[] = "/dev/shm";
constexpr char kPrefix[] = "securecoll-";
constexpr size_t kNameBytes = 48;

std::string reason() { return std::strerror(errno); }

// Tells whether two ranks share a process. Drawn anew in a forked child, and never derived from a pid, which is unique
// in its pid namespace only.
uint64_t process_token() {
  static std::mutex mutex;
  static uint64_t token = 0, generation = 0;
  std::lock_guard lock(mutex);
  if (generation != fork_generation()) {
    fill_random(&token, sizeof token);
    generation = fork_generation();
  }
  return token;
}

struct flock whole_file(short type) {
  struct flock l{};
  l.l_type = type;
  l.l_whence = SEEK_SET;
  l.l_len = 1;
  return l;
}

bool locked_by_someone(int fd) {
  auto l = whole_file(F_WRLCK);
  return fcntl(fd, F_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

// Removes segments of this user whose owner died before it could: killed between create and connect. A segment is
// locked from its first moment under its final name, so an unlocked one has no owner.
void remove_left_overs() {
  DIR* d = opendir(kDirectory);
  if (!d) return;
  while (const dirent* e = readdir(d)) {
    if (std::strncmp(e->d_name, kPrefix, sizeof kPrefix - 1) != 0) continue;
    const std::string path = std::string(kDirectory) + "/" + e->d_name;
    const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    struct stat s;
    // The age spares a segment that is being made right now, between open and lock. A lock of this very process is
    // not reported by F_GETLK, and closing `fd` would drop it: own segments are unlinked by their owner.
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const bool ours = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid();
    if (ours && now.tv_sec - s.st_mtim.tv_sec > 60 && !locked_by_someone(fd)) ::unlink(path.c_str());
    close(fd);
  }
  closedir(d);
}

// Makes page table entries now that would be made one by one at first use. Kernels before 5.14 do not know how.
constexpr int kForReading = 22, kForWriting = 23;  // MADV_POPULATE_READ, MADV_POPULATE_WRITE

void bring_in(uint8_t* at, uint64_t bytes, int how) { madvise(at, bytes, how); }

}  // namespace

uint64_t SegmentShape::stride() const { return (uint64_t{slot_bytes} + 16 + kPage - 1) / kPage * kPage; }
uint64_t SegmentShape::slots_at() const {
  return (control_at() + size * control_lane_bytes() + kPage - 1) / kPage * kPage;
}
Segment::Segment(uint32_t rank, SegmentShape shape)
    : rank_(rank),
      shape_(shape),
      file_bytes_(shape.bytes()),
      mappings_(shape.size),
      allocated_(2 * size_t{shape.size}, 0) {
  static const bool swept = (remove_left_overs(), true);
  (void)swept;
  fill_random(challenge_, sizeof challenge_);
  uint8_t id[8];
  fill_random(id, sizeof id);
  char name[kNameBytes];
  snprintf(name, sizeof name, "%s%ld-%016llx", kPrefix, static_cast<long>(geteuid()),
           static_cast<unsigned long long>(load_be64(id)));
  name_ = name;
  const std::string path = std::string(kDirectory) + "/" + name_;
  Mapping& own = mappings_[rank];
  own.fd = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (own.fd < 0) throw Unavailable(path + " cannot be created: " + reason());
  linked_ = true;
  close_in_children(own.fd);
  auto lock = whole_file(F_WRLCK);
  int failed = fcntl(own.fd, F_SETLK, &lock) != 0 ? errno : 0;
  // Allocated before it is used: a page that cannot be had later would be a SIGBUS in the middle of a collective.
  if (!failed) failed = posix_fallocate(own.fd, 0, static_cast<off_t>(shape_.control_at()));
  if (!failed && ftruncate(own.fd, static_cast<off_t>(file_bytes_)) != 0) failed = errno;
  void* at = failed ? MAP_FAILED : map_file(own.fd, PROT_READ | PROT_WRITE);
  if (at == MAP_FAILED) {
    if (!failed) failed = errno;
    unlink();
    release(own);
    too_small(path, shape_.control_at(), failed);
  }
  own.base = static_cast<uint8_t*>(at);
  own.same_process = true;
  madvise(at, file_bytes_, MADV_DONTFORK);
  std::memcpy(own.base, challenge_, sizeof challenge_);
}

Segment::~Segment() {
  unlink();
  for (Mapping& m : mappings_) release(m);
}

void* Segment::map_file(int fd, int protection) const {
  void* at = mmap(nullptr, file_bytes_, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return at;
  // Not the rest: reading a page of shared memory that is not there makes it.
  if (mmap(at, shape_.control_at(), protection, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) != MAP_FAILED) return at;
  const int failed = errno;
  munmap(at, file_bytes_);
  errno = failed;
  return MAP_FAILED;
}

void Segment::too_small(const std::string& path, uint64_t bytes, int failed) const {
  struct statvfs fs{};
  statvfs(kDirectory, &fs);
  throw EngineError(ErrorKind::config, "rank " + std::to_string(rank_) + ": " + path + " needs " +
                                           std::to_string(bytes) + " bytes and " + kDirectory + " has " +
                                           std::to_string(uint64_t{fs.f_bavail} * fs.f_frsize) + " free (" +
                                           std::strerror(failed) +
                                           "); enlarge it, for example with docker run --shm-size or mount -o "
                                           "remount,size=, or set SECURECOLL_TRANSPORT=tcp");
}

void Segment::allocate_lanes(uint32_t slot_bytes) {
  shape_.slot_bytes = slot_bytes;
  if (mapped() == 1) return;
  const int fd = mappings_[rank_].fd;
  const auto take = [&](uint64_t at, uint64_t bytes) {
    const int failed = posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(bytes));
    if (failed) too_small(std::string(kDirectory) + "/" + name_, shape_.needed(mapped()), failed);
  };
  for (uint32_t p = 0; p < shape_.size; p++)
    if (p != rank_ && mappings_[p].base)
      take(shape_.control_at() + p * shape_.control_lane_bytes(), shape_.control_lane_bytes());
  for (const auto& [at, bytes] : slots_of(rank_)) {
    take(at, bytes);
    bring_in(mappings_[rank_].base + at, bytes, kForWriting);
  }
}

// Offset and bytes of the slots in a rank's segment that this rank writes or reads, but for messages.
std::vector<std::pair<uint64_t, uint64_t>> Segment::slots_of(uint32_t owner) const {
  std::vector<std::pair<uint64_t, uint64_t>> found;
  for (uint32_t p = 0; p < shape_.size; p++) {
    if (owner == rank_ ? !mappings_[p].base : p != rank_ && p != owner) continue;
    const uint64_t at = shape_.slots_at() + p * shape_.lane_bytes();
    if (!found.empty() && found.back().first + found.back().second == at)
      found.back().second += shape_.lane_bytes();
    else
      found.emplace_back(at, shape_.lane_bytes());
  }
  return found;
}

uint32_t Segment::mapped() const {
  return static_cast<uint32_t>(
      std::count_if(mappings_.begin(), mappings_.end(), [](const Mapping& m) { return m.base != nullptr; }));
}

void Segment::allocate(uint64_t lane) {
  std::lock_guard lock(allocation_);
  if (allocated_[lane]) return;
  const uint64_t bytes = shape_.lane_bytes();
  const int failed =
      posix_fallocate(mappings_[rank_].fd, static_cast<off_t>(message_slots(lane)), static_cast<off_t>(bytes));
  if (failed) too_small("a lane for messages to rank " + std::to_string(lane / 2), bytes, failed);
  allocated_[lane] = 1;
  allocated_bytes_ += bytes;
}

void Segment::release(Mapping& m) noexcept {
  if (m.base) munmap(m.base, file_bytes_);
  if (m.fd >= 0) {
    forget_in_children(m.fd);
    close(m.fd);
  }
  m = Mapping{};
}

void Segment::unlink() noexcept {
  if (!linked_) return;
  linked_ = false;
  ::unlink((std::string(kDirectory) + "/" + name_).c_str());
}

// u64 process | 8 zero | challenge[16] | name[48]
void Segment::endpoint(uint8_t out[kEndpointBytes]) const {
  std::memset(out, 0, kEndpointBytes);
  store_be64(out, process_token());
  std::memcpy(out + 16, challenge_, kChallengeBytes);
  std::memcpy(out + 32, name_.data(), name_.size());
}

bool Segment::map(uint32_t peer, const uint8_t endpoint[kEndpointBytes], std::string& why_not) {
  const auto* text = reinterpret_cast<const char*>(endpoint) + 32;
  const std::string name(text, strnlen(text, kNameBytes));
  if (name.size() == kNameBytes || name.rfind(kPrefix, 0) != 0 || name.find('/') != std::string::npos)
    throw EngineError(ErrorKind::handshake, "rank " + std::to_string(rank_) + ": rank " + std::to_string(peer) +
                                                "'s segment has an impossible name");
  const std::string path = std::string(kDirectory) + "/" + name;
  Mapping& m = mappings_[peer];
  const auto refuse = [&](const std::string& reason) {
    why_not = path + ' ' + reason;
    release(m);
    return false;
  };
  m.same_process = load_be64(endpoint) == process_token();
  m.fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (m.fd < 0) return refuse("cannot be opened here: " + reason());
  close_in_children(m.fd);
  struct stat s;
  if (fstat(m.fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size != static_cast<off_t>(file_bytes_))
    return refuse("has the wrong size");
  void* at = map_file(m.fd, PROT_READ);
  if (at == MAP_FAILED) return refuse("cannot be mapped: " + reason());
  m.base = static_cast<uint8_t*>(at);
  madvise(at, file_bytes_, MADV_DONTFORK);
  // Proves that this is the segment that the peer made, not one of the same name in another mount namespace.
  if (std::memcmp(m.base, endpoint + 16, kChallengeBytes) != 0) return refuse("is not the one that it made");
  std::memcpy(greeting(rank_, peer), endpoint + 16, kChallengeBytes);
  return true;
}

bool Segment::meets(uint32_t peer) {
  Mapping& m = mappings_[peer];
  if (!m.base || std::memcmp(greeting(peer, rank_), challenge_, kChallengeBytes) != 0) {
    release(m);
    return false;
  }
  // It has allocated them before it confirmed the handshake.
  for (const auto& [at, bytes] : slots_of(peer)) bring_in(m.base + at, bytes, kForReading);
  return true;
}

uint8_t* Segment::greeting(uint32_t from, uint32_t to) const {
  return mappings_[from].base + shape_.greetings_at() + to * sizeof(Word);
}

Bell* Segment::bell() const { return reinterpret_cast<Bell*>(mappings_[rank_].base + SegmentShape::kPage); }

uint64_t Segment::mapped_bytes() const {
  // Of each peer's as much as if there were no others.
  return shape_.needed(mapped()) + (mapped() - 1) * shape_.needed(2) + allocated_bytes_;
}

const Word* Segment::word(uint32_t rank, uint64_t at, uint64_t index) const {
  return reinterpret_cast<const Word*>(mappings_[rank].base + at) + index;
}

namespace {
const Bell* bell_of(const uint8_t* base) { return reinterpret_cast<const Bell*>(base + SegmentShape::kPage); }
}  // namespace

std::unique_ptr<LaneWriter> Segment::writer(uint32_t peer, uint64_t head, uint64_t tail, uint64_t slots) const {
  return std::make_unique<ShmLaneWriter>(
      const_cast<Word*>(word(rank_, shape_.heads_at(), head)), mappings_[rank_].base + slots, shape_.stride(),
      shape_.depth,
      std::vector<ShmLaneWriter::Reader>{{peer, word(peer, shape_.tails_at(), tail), bell_of(mappings_[peer].base)}});
}

std::unique_ptr<LaneReader> Segment::reader(uint32_t peer, uint64_t head, uint64_t tail, uint64_t slots) const {
  return std::make_unique<ShmLaneReader>(
      peer, word(peer, shape_.heads_at(), head), mappings_[peer].base + slots, shape_.stride(), shape_.depth,
      const_cast<Word*>(word(rank_, shape_.tails_at(), tail)), bell_of(mappings_[peer].base));
}

// Heads: [0, size) to each rank, [size] to all, then control, messages and bulk, `size` each. Tails, by writer: from
// it, from its lane to all, control, messages, bulk. Slots: lane p for rank p; the lane to all takes the place of the
// own rank; those for messages and bulk come in turn.
std::unique_ptr<LaneWriter> Segment::writer_to(uint32_t peer) const {
  return writer(peer, peer, rank_, shape_.slots_at() + peer * shape_.lane_bytes());
}

std::unique_ptr<LaneReader> Segment::reader_from(uint32_t peer) const {
  return reader(peer, rank_, peer, shape_.slots_at() + rank_ * shape_.lane_bytes());
}

std::unique_ptr<LaneWriter> Segment::writer_to_all() const {
  std::vector<ShmLaneWriter::Reader> readers;
  for (uint32_t p = 0; p < shape_.size; p++)
    if (p != rank_ && mappings_[p].base)
      readers.push_back({p, word(p, shape_.tails_at(), shape_.size + rank_), bell_of(mappings_[p].base)});
  return std::make_unique<ShmLaneWriter>(const_cast<Word*>(word(rank_, shape_.heads_at(), shape_.size)),
                                         mappings_[rank_].base + shape_.slots_at() + rank_ * shape_.lane_bytes(),
                                         shape_.stride(), shape_.depth, std::move(readers));
}

std::unique_ptr<LaneReader> Segment::reader_from_all(uint32_t peer) const {
  return reader(peer, shape_.size, shape_.size + peer, shape_.slots_at() + peer * shape_.lane_bytes());
}

std::unique_ptr<LaneWriter> Segment::control_to(uint32_t peer) const {
  return std::make_unique<ShmLaneWriter>(
      const_cast<Word*>(word(rank_, shape_.heads_at(), shape_.size + 1 + peer)),
      mappings_[rank_].base + shape_.control_at() + peer * shape_.control_lane_bytes(), SegmentShape::kControlStride,
      SegmentShape::kControlDepth,
      std::vector<ShmLaneWriter::Reader>{
          {peer, word(peer, shape_.tails_at(), 2 * uint64_t{shape_.size} + rank_), bell_of(mappings_[peer].base)}});
}

std::unique_ptr<LaneReader> Segment::control_from(uint32_t peer) const {
  return std::make_unique<ShmLaneReader>(
      peer, word(peer, shape_.heads_at(), shape_.size + 1 + rank_),
      mappings_[peer].base + shape_.control_at() + rank_ * shape_.control_lane_bytes(), SegmentShape::kControlStride,
      SegmentShape::kControlDepth, const_cast<Word*>(word(rank_, shape_.tails_at(), 2 * uint64_t{shape_.size} + peer)),
      bell_of(mappings_[peer].base));
}

std::unique_ptr<LaneWriter> Segment::messages_to(uint32_t peer) const {
  const uint64_t n = shape_.size;
  return writer(peer, 2 * n + 1 + peer, 3 * n + rank_, message_slots(2 * uint64_t{peer}));
}

std::unique_ptr<LaneReader> Segment::messages_from(uint32_t peer) const {
  const uint64_t n = shape_.size;
  return reader(peer, 2 * n + 1 + rank_, 3 * n + peer, message_slots(2 * uint64_t{rank_}));
}

std::unique_ptr<LaneWriter> Segment::bulk_to(uint32_t peer) const {
  const uint64_t n = shape_.size;
  return writer(peer, 3 * n + 1 + peer, 4 * n + rank_, message_slots(2 * uint64_t{peer} + 1));
}

std::unique_ptr<LaneReader> Segment::bulk_from(uint32_t peer) const {
  const uint64_t n = shape_.size;
  return reader(peer, 3 * n + 1 + rank_, 4 * n + peer, message_slots(2 * uint64_t{rank_} + 1));
}

std::vector<Segment::Range> Segment::ranges() const {
  std::vector<Range> ranges;
  for (uint32_t r = 0; r < shape_.size; r++) {
    if (!mappings_[r].base) continue;
    for (const auto& [at, bytes] : slots_of(r)) ranges.push_back({mappings_[r].base + at, bytes, r == rank_});
  }
  return ranges;
}

bool Segment::alive(uint32_t peer) const {
  const Mapping& m = mappings_[peer];
  // Within one process F_GETLK reports no conflict, and a rank cannot die without the other.
  return m.same_process || locked_by_someone(m.fd);
}

}  // namespace securecoll
