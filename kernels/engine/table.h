/* The engine as seen by another extension module: a versioned table of C functions.
 *
 * `securecoll._engine.table` is a PyCapsule named "securecoll.engine.table" that holds a `const sc_table*`. A module
 * that was built against another version of this file must refuse to load. No C++ type, exception or allocator
 * crosses. Every function may be called without the GIL, from any thread, unless its comment says otherwise. */
#ifndef SECURECOLL_TABLE_H
#define SECURECOLL_TABLE_H
#include <stddef.h>
#include <stdint.h>

#define SC_TABLE_VERSION 3
#define SC_ANY_SOURCE UINT32_MAX
#define SC_TABLE_CAPSULE "securecoll.engine.table"
#define SC_COMMUNICATOR_CAPSULE "securecoll.engine.communicator"

typedef struct sc_communicator sc_communicator; /* borrowed from a PyCapsule, see retain */
typedef struct sc_operation sc_operation;

typedef struct {
  void* data; /* may be null when bytes is 0 */
  uint64_t bytes;
} sc_segment;

typedef struct {
  uint8_t kind;       /* ErrorKind of codes.hpp; 0: no error */
  char message[1015]; /* NUL-terminated UTF-8 */
} sc_error;

/* Called exactly once, when the operation is final, from whichever thread finished it: it must not block and must not
 * take the GIL. Never called when submit failed. May run before submit returns. */
typedef void (*sc_done)(void* context, sc_operation* operation);

typedef struct {
  uint8_t collective; /* Collective */
  uint8_t dtype;      /* DType; 0 for a barrier */
  uint8_t redop;      /* RedOp; 0 where nothing is reduced */
  uint8_t blocking;   /* the caller will wait at once: nobody else is woken to make progress */
  uint32_t root;      /* group rank; 0 where there is none */
  /* Elements. all_reduce, broadcast, reduce: in the buffer. reduce_scatter, scatter: in this rank's output.
   * all_gather, gather: in this rank's input. all_to_all: to each peer. barrier: 0. Ignored where counts are given. */
  uint64_t count;
  double factor; /* PREMUL_SUM */
  /* A buffer is a list of segments, seen as one run of bytes in rank order. reduce_scatter, scatter (root) and
   * all_to_all inputs hold all ranks' parts; all_gather, gather (root) and all_to_all outputs likewise. For a
   * collective done in place, pass the same memory (all_gather: the input is the own part of the output, and so on).
   * broadcast: root's data is `input`, and its `output`, when given, is filled too; others' is `output`; reduce:
   * `output` on root only. Segments hold whole elements. */
  const sc_segment* input;
  uint32_t inputs;
  const sc_segment* output;
  uint32_t outputs;
  /* Uneven parts, `size` elements each, or null. all_to_all: elements sent to and received from each rank.
   * all_gather, gather, reduce_scatter, scatter: `send_counts` alone, the part of each rank, equal on all ranks. */
  const uint64_t* send_counts;
  const uint64_t* recv_counts;
  /* Where the segments lie: 0, CPU memory; 1 + n, memory of device n. `stream` is then the caller's stream (a
   * CUstream; null: the default one): the operation comes after what was given to it before. */
  uint32_t place;
  void* stream;
  int64_t timeout_ns; /* from now; <= 0: the communicator's default */
  sc_done done;       /* may be null */
  void* context;
} sc_request;

/* One message between two ranks. A receive takes the oldest message from its peer that has its tag; dtype and bytes
 * must be the sender's. */
typedef struct {
  uint8_t dtype;    /* DType */
  uint8_t blocking; /* as in sc_request */
  uint32_t peer;    /* group rank, not the own one; to receive, SC_ANY_SOURCE too */
  uint64_t tag;
  const sc_segment* segments; /* seen as one run of bytes: read by send, written by receive */
  uint32_t count;
  uint32_t place; /* 0: CPU memory, the only one that messages have so far */
  int64_t timeout_ns;
  sc_done done;
  void* context;
} sc_message;

typedef struct {
  uint32_t version; /* SC_TABLE_VERSION */
  uint32_t bytes;   /* sizeof(sc_table) */
  void (*retain)(sc_communicator*);
  void (*release)(sc_communicator*);
  /* Starts an operation. Copies what the request points to, but not the data, which must stay until the operation is
   * final. Null on error, with `error` filled: then nothing was sent. On a plan's first use it takes the GIL itself:
   * do not hold it. The operation is the caller's reference. */
  sc_operation* (*submit)(sc_communicator*, const sc_request*, sc_error* error);
  /* As submit, for one message. A send is final when its memory may be used again, which does not mean that it was
   * received. */
  sc_operation* (*send)(sc_communicator*, const sc_message*, sc_error* error);
  sc_operation* (*receive)(sc_communicator*, const sc_message*, sc_error* error);
  /* Waits until final or `timeout_ns` (< 0: the operation's own deadline rules). Returns 1 when final and successful,
   * 0 when `timeout_ns` passed first, -1 when final with an error, filled in. Helps with progress. */
  int (*wait)(sc_operation*, int64_t timeout_ns, sc_error* error);
  /* As wait, but for device memory no longer than until all of it was handed to the device: 1. The caller then orders
   * its own work behind it by resume(), which makes `stream` wait, and trap if a record did not verify. Tensors must
   * stay until the operation is final. For CPU memory wait_handed is wait, and resume does nothing. */
  int (*wait_handed)(sc_operation*, int64_t timeout_ns, sc_error* error);
  int (*resume)(sc_operation*, void* stream, sc_error* error);
  /* 0: in flight, 1: done, -1: failed (error filled, if not null). Does not make progress. */
  int (*poll)(sc_operation*, sc_error* error);
  uint64_t (*sequence)(sc_operation*);
  /* Of a receive that is done: the rank whose message it got. */
  uint32_t (*source)(sc_operation*);
  void (*release_operation)(sc_operation*);
  /* Fails everything in flight, tells the peers, erases the keys. Returns at once. */
  void (*abort)(sc_communicator*, const char* reason);
  /* Waits for what is in flight (at most its deadlines), then erases keys and gives back memory. Idempotent. */
  void (*close)(sc_communicator*);
  /* 0: usable; else the first error, filled in. */
  int (*state)(sc_communicator*, sc_error* error);
  uint32_t (*rank)(sc_communicator*);
  uint32_t (*size)(sc_communicator*);
  uint64_t (*last_sequence)(sc_communicator*);
  void (*set_timeout)(sc_communicator*, int64_t timeout_ns);
  /* 1 when (dtype, redop) can be reduced, by CPU and device alike. */
  int (*reducible)(uint8_t dtype, uint8_t redop);
} sc_table;

#endif
