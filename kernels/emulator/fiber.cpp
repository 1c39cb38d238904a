#include "emulator/fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(SC_EMULATOR_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

#if !defined(SC_EMULATOR_UCONTEXT)
// void sc_emulator_switch(void** save, void* to): what a call must preserve goes onto the stack, the stack pointer to
// *save, and the other stack's is taken in its place. A new stack looks as if it had been left here.
asm(R"(
.text
.globl sc_emulator_switch
.hidden sc_emulator_switch
.type sc_emulator_switch, @function
sc_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sc_emulator_switch, .-sc_emulator_switch
)");
extern "C" void sc_emulator_switch(void** save, void* to);
#endif

namespace securecoll::emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = size_t{256} << 10;  // frames have red zones
#else
constexpr size_t kStackBytes = size_t{64} << 10;
#endif

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// The fiber that start() is to run: an entry point of a stack takes no argument that all switches could pass.
__thread Fiber* starting = nullptr;

}  // namespace

Fiber::Fiber(unsigned number) {
  const size_t guard = page_bytes();
  void* const whole =
      mmap(nullptr, guard + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) throw std::bad_alloc();
  mprotect(whole, guard, PROT_NONE);  // an overflow faults rather than reach another stack
  low_ = reinterpret_cast<uintptr_t>(whole) + guard;
  size_ = kStackBytes;
  // Stacks that all began at the same offset of a page would compete for the same few sets of the cache.
  top_ = low_ + size_ - number * 272 % 4096 / 16 * 16;
#if defined(SC_EMULATOR_TSAN)
  own_state_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(SC_EMULATOR_TSAN)
  __tsan_destroy_fiber(own_state_);
#endif
  const size_t guard = page_bytes();
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(low_), size_);
#endif
  munmap(reinterpret_cast<void*>(low_ - guard), guard + size_);
}

void Fiber::prepare(Entry entry) {
  entry_ = entry;
#if defined(__SANITIZE_ADDRESS__)
  // Frames that were abandoned have left their red zones behind.
  ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(low_), size_);
  own_state_ = nullptr;
#endif
#if defined(SC_EMULATOR_UCONTEXT)
  getcontext(&own_);
  own_.uc_stack.ss_sp = reinterpret_cast<void*>(low_);
  own_.uc_stack.ss_size = top_ - low_;
  own_.uc_link = nullptr;
  makecontext(&own_, &Fiber::start, 0);
#else
  void** at = reinterpret_cast<void**>(top_);
  *--at = nullptr;  // start() does not return; this also makes the stack as aligned as after a call
  *--at = reinterpret_cast<void*>(&Fiber::start);
  for (int saved = 0; saved < 6; saved++) *--at = nullptr;
  own_ = at;
#endif
}

void Fiber::resume() {
  starting = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&resumer_state_, reinterpret_cast<void*>(low_), size_);
#endif
#if defined(SC_EMULATOR_TSAN)
  resumer_state_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_state_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(SC_EMULATOR_UCONTEXT)
  swapcontext(&resumer_, &own_);
#else
  sc_emulator_switch(&resumer_, own_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(resumer_state_, nullptr, nullptr);
#endif
}

void Fiber::leave([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &own_state_, resumer_low_, resumer_size_);
#endif
#if defined(SC_EMULATOR_TSAN)
  __tsan_switch_to_fiber(resumer_state_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(SC_EMULATOR_UCONTEXT)
  swapcontext(&own_, &resumer_);
#else
  sc_emulator_switch(&own_, resumer_);
#endif
  entered();
}

// First thing on the fiber's stack after each switch to it.
void Fiber::entered() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(own_state_, &resumer_low_, &resumer_size_);
#endif
}

void Fiber::finish() {
  leave(true);
  __builtin_unreachable();
}

void Fiber::start() {
  Fiber* const self = starting;
  self->entered();
  self->entry_();
  self->finish();
}

}  // namespace securecoll::emulator
