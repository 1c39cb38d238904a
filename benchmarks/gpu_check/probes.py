"""Each intrinsic that kernels use, against the models that the emulator's own are tested against."""

from __future__ import annotations

from gpu_check import cards
from gpu_check.findings import Findings
from gpu_check.target import Target
from tests.emulator import test_names as models
from tests.emulator.emulator import Order

WARP, HALF = 0xFFFFFFFF, 0x0000FFFF
ANY = Order.RANDOM

CHECKS = (
    ("PRMT, funnel shifts, bit counts, products", models.test_intrinsics_of_one_thread_match_their_models),
    ("the same of 64 bits; bits of floats", models.test_intrinsics_of_64_bits_match_their_models),
    ("shuffles and ballots of a warp", models.test_warp_operations_match_their_models, ANY, 32, WARP),
    ("shuffles within parts of a warp", models.test_warp_operations_match_their_models, ANY, 8, WARP),
    ("shuffles among some lanes", models.test_warp_operations_match_their_models, ANY, 32, HALF),
    ("halves of a warp apart", models.test_halves_of_a_warp_work_apart, ANY),
    ("fragments of the 1-bit matrix product", models.test_binary_mma_counts_common_bits_of_rows_and_columns, ANY),
    ("atomics", models.test_atomics_lose_nothing_and_return_what_was_there, ANY),
    ("look-ups in replicated tables", models.test_table_look_ups_find_their_lane_row_and_table, ANY),
    ("streaming loads and stores", models.test_streaming_loads_and_stores_move_16_bytes),
    ("coordinates and constants", models.test_threads_know_their_coordinates_and_constants),
)


def run(target: Target, findings: Findings) -> None:
    gpu = cards.names(target)
    for name, check, *arguments in CHECKS:
        with findings.check(name):
            check(gpu, *arguments)
    gpu.close()
