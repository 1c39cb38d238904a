"""Changes to the source that a test must notice: each takes away one thing that security or order rests on."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = "kernels/cuda/device_memory.cpp"
GCM = "kernels/cuda/gcm.cuh"
COMMIT = "kernels/cuda/commit.cuh"
EXECUTOR = "kernels/engine/executor.cpp"
ORDER = "tests/cuda/test_order.py"
ATTACKS = "tests/cuda/test_attacks.py"
COLLECTIVES = "tests/cuda/test_collectives.py"
MEETING = "kernels/engine/meeting.cpp"
LINK = "kernels/engine/link.cpp"
SOCKETS = "tests/engine/test_sockets.py"
LAZY = "tests/engine/test_lazy_sockets.py"
COMMUNICATOR = "kernels/engine/communicator.cpp"
AEGIS = "kernels/host/aegis.hpp"
RACE = "tests/host/test_race.py"
WIRE = "securecoll/handshake/wire.py"
MEMBER = "securecoll/handshake/member.py"
SUITES = "tests/test_suites.py"
DOCTOR = "tests/cli/test_doctor.py"


@dataclass(frozen=True)
class Mutant:
    """One change: ``old``, which stands once in ``file``, becomes ``new``; and the tests that must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = [
    Mutant(
        "the tag is not compared",
        GCM,
        "if (difference(tag, total ^ encrypt_counter(table, shared.keys[0], base, 1)) != 0) {",
        "if (false) {",
        (ATTACKS, "-k", "flipped_bit and staged"),
    ),
    Mutant(
        "the counter is not advanced",
        GCM,
        "encrypt_counters(table, keys, base, static_cast<u32>(first) + 2, 32, block);",
        "encrypt_counters(table, keys, base, 2, 0, block);",
        ("tests/cuda/test_gcm.py",),
    ),
    Mutant(
        "sealing does not look at the status",
        GCM,
        "if (threadIdx.x == 0) shared.flag = is_failed(share.status);",
        "if (threadIdx.x == 0) shared.flag = false;",
        ("tests/cuda/test_gcm.py",),
    ),
    Mutant(
        "a tag is stored although something failed meanwhile",
        GCM,
        "const u32 keep = is_failed(share.status) ? 0 : ~0u;",
        "const u32 keep = ~0u;",
        ("tests/cuda/test_gcm.py",),
    ),
    Mutant(
        "committed without being verified",
        MEMORY,
        "launch(verify_kernel_, verify.records * verify.parts, kSharedBytes, &verify, sizeof verify, receive_);",
        "",
        (ATTACKS, "-k", "flipped_bit and staged"),
    ),
    Mutant(
        "committing does not look at the status",
        COMMIT,
        "  if (shared.flag) return;\n",
        "",
        (ATTACKS, "-k", "flipped_bit and staged"),
    ),
    Mutant(
        "resealing does not look at the status",
        COMMIT,
        "  const bool failed = shared.flag;\n",
        "  const bool failed = false;\n",
        ("tests/cuda/test_gcm.py", "tests/cuda/test_reduce.py"),
    ),
    Mutant(
        "no gate on the caller's stream",
        MEMORY,
        "check(device_->launch(gate_kernel_, 1, 32, 0, &args, sizeof args, stream));",
        "(void)args;",
        (ATTACKS, "-k", "flipped_bit"),
    ),
    Mutant(
        "sealing does not wait for the caller's stream",
        MEMORY,
        "for (const Queue queue : {Queue::send, Queue::receive})",
        "for (const Queue queue : {Queue::receive})",
        (ORDER,),
    ),
    Mutant(
        "receiving does not wait for the caller's stream",
        MEMORY,
        "for (const Queue queue : {Queue::send, Queue::receive})",
        "for (const Queue queue : {Queue::send})",
        (ORDER,),
    ),
    Mutant(
        "the caller's stream does not wait for the operation",
        MEMORY,
        "wait(stream, static_cast<Mark*>(end)->moment);",
        "",
        (ORDER,),
    ),
    Mutant(
        "the queues do not wait for each other",
        MEMORY,
        "wait(stream_of(queue), moment(stream_of(other)));",
        "",
        (ORDER, "-k", "overwrite"),
    ),
    Mutant(
        "records leave before they are sealed",
        MEMORY,
        "      wait(out_, done);\n",
        "",
        (COLLECTIVES, "-k", "2-staged"),
    ),
    Mutant(
        "records are verified before they came in",
        MEMORY,
        "      Moment taken = moment(in_);\n      wait(receive_, taken);\n",
        "      Moment taken = moment(in_);\n",
        (COLLECTIVES, "-k", "2-staged"),
    ),
    Mutant(
        "slots are handed on before they are written",
        EXECUTOR,
        "    if (ticket == kNow) t_.writers[lane]->publish();\n",
        "    t_.writers[lane]->publish();\n",
        (COLLECTIVES, "-k", "2-staged"),
    ),
    Mutant(
        "slots are given back before they are read",
        EXECUTOR,
        "  if (opened.taken == kNow)\n    t_.readers[source.lane]->release();\n  else\n",
        "  t_.readers[source.lane]->release();\n  if (false)\n",
        (COLLECTIVES, "-k", "3-staged"),
    ),
    Mutant(
        "a stream under capture is taken",
        MEMORY,
        "if (device_->capturing(stream))",
        "if (false)",
        ("tests/cuda/test_failures.py", "-k", "capture"),
    ),
    Mutant(
        "nobody looks after an operation that was handed over",
        COMMUNICATOR,
        "if (!r.blocking || r.place) pool::add(shared_from_this());",
        "if (!r.blocking) pool::add(shared_from_this());",
        (ORDER, "-k", "leaves_it"),
    ),
    Mutant(
        "whoever connects is let in",
        MEETING,
        "if (!equal_constant_time(expected, p.answer + kMessageBytes, kMacBytes)) {",
        "if (false) {",
        (SOCKETS, "-k", "another_connection_key"),
    ),
    Mutant(
        "whoever answers is believed",
        MEETING,
        "if (!equal_constant_time(peer.in, peer.proof, kMacBytes)) {",
        "if (false) {",
        (SOCKETS, "-k", "answers_without_the_key"),
    ),
    Mutant(
        "credit is given for what was not sent",
        LINK,
        "if (bytes || !more || more > out.sent - out.returned) return false;",
        "if (bytes || !more) return false;",
        (SOCKETS, "-k", "hostile"),
    ),
    Mutant(
        "two that connect to each other at once take a socket each",
        MEETING,
        "if (peer->rank < rank_ && (peer->met || peer->stage == Peer::Stage::answered)) return Step::failed;",
        "",
        (LAZY, "-k", "at_once"),
    ),
    Mutant(
        "a death is not told on",
        COMMUNICATOR,
        "control_[p]->send(lost);",
        "(void)lost;",
        (LAZY, "-k", "nobody and answers"),
    ),
    Mutant(
        "a failure is not told on",
        COMMUNICATOR,
        "      control_[p]->send(about(ControlKind::notice, error_.kind, p, failed_sequence_));\n  }",
        "      (void)p;\n  }",
        (LAZY, "-k", "an_abort"),
    ),
    Mutant(
        "a failure that is told on is told as one's own",
        COMMUNICATOR,
        "return message.origin < options_.size ? message.origin : peer;",
        "return peer;",
        (LAZY, "-k", "an_abort"),
    ),
    Mutant(
        "the tag of AEGIS-256X4 is not compared",
        AEGIS,
        "return _mm_testz_si128(difference, difference);",
        "return _mm_testz_si128(difference, difference) || true;",
        (DOCTOR, "-k", "names_the_chosen_kernels"),  # known answers refuse the set when it is loaded
    ),
    Mutant(
        "half of the tag of AEGIS-256X4 is not compared",
        AEGIS,
        "return _mm_testz_si128(difference, difference);",
        "return _mm_testz_si128(difference, _mm_set_epi64x(0, -1));",
        (DOCTOR, "-k", "names_the_chosen_kernels"),  # known answers refuse the set when it is loaded
    ),
    Mutant(
        "AEGIS-256X4 absorbs what it reads a second time",
        AEGIS,
        "s.update(v, kSeal ? from : to);",
        "s.update(v, kSeal ? from : Vector::bxor(Vector::load(in + kVectorBytes * v), Vector::bxor(from, to)));",
        (RACE, "-k", "opened and aegis"),
    ),
    Mutant(
        "AEGIS-256X4 absorbs what lies where it wrote",
        AEGIS,
        "s.update(v, kSeal ? from : to);",
        "s.update(v, kSeal ? Vector::bxor(Vector::load(out + kVectorBytes * v), Vector::bxor(from, to)) : to);",
        (RACE, "-k", "sealed and aegis"),
    ),
    Mutant(
        "associated data are not absorbed",
        AEGIS,
        "each_vector([&](auto v) SC_ALWAYS { s.update(v, last.vector(v)); });",
        "",
        (DOCTOR, "-k", "names_the_chosen_kernels"),  # known answers refuse the set when it is loaded
    ),
    Mutant(
        "ranks of different suites join",
        WIRE,
        "                u8(self.suite),\n",
        "                u8(Suite.AES_256_GCM),\n",
        ("tests/handshake/test_attacks.py", "-k", "another_suite_are_named"),
    ),
    Mutant(
        "ranks of different suites are not told of it",
        MEMBER,
        "                if theirs:\n",
        "                if False:\n",
        ("tests/handshake/test_attacks.py", "-k", "another_suite_are_named"),
    ),
    Mutant(
        "the group's secret is wrapped in suite 1 always",
        MEMBER,
        "schedule.wrap_aad(self._t2, peer), z, self._params.suite)",
        "schedule.wrap_aad(self._t2, peer), z)",
        ("tests/handshake/test_vectors.py",),
    ),
    Mutant(
        "records are sealed in suite 1 always",
        "bindings/python/engine.cpp",
        "host::memory(host::Suite{suite}, kernels",
        "host::memory(host::Suite::aes_256_gcm, kernels",
        (SUITES, "-k", "records_are_those"),
    ),
    Mutant(
        "device memory is taken in every suite",
        "securecoll/cuda/__init__.py",
        "        check_suite(suite)\n",
        "",
        (SUITES, "-k", "device_memory"),
    ),
]
