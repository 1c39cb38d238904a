"""The study of data-parallel training: its arithmetic, its models and data, and one short run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import peers
import pytest

torch = pytest.importorskip("torch")

from ddp_overhead.cell import Cell, Pace, Turn  # noqa: E402
from ddp_overhead.data import digits, tokens  # noqa: E402
from ddp_overhead.models import IGNORED, MASK, SEQUENCE, Transformer, loss, workloads  # noqa: E402
from ddp_overhead.report import verdicts  # noqa: E402
from ddp_overhead.study import begin, off, parse  # noqa: E402
from torch import nn  # noqa: E402

SCRIPT = Path(peers.__file__).with_name("ddp_overhead.py")


def turn(together: float, alone: float, cpu: float) -> Turn:
    parts = {"forward": 1.0, "backward": together - 2, "update": 1.0}
    return Turn(Pace(together, parts, cpu), Pace(alone, {**parts, "backward": alone - 2}, 1.0))


def test_a_pace_is_the_mean_of_ranks_and_the_median_of_iterations() -> None:
    first = {"spans": [[0.001, 0.002, 0.003], [0.001, 0.004, 0.003], [1.0, 1.0, 1.0]], "cpu": 0.010}
    second = {"spans": [[0.003, 0.004, 0.005], [0.003, 0.004, 0.005], [1.0, 1.0, 1.0]], "cpu": 0.030}
    pace = Pace.of([first, second])
    assert pace.iteration == pytest.approx(10.0)
    assert pace.parts == pytest.approx({"forward": 2.0, "backward": 4.0, "update": 4.0})
    assert pace.cpu == pytest.approx(20.0)


def test_exposed_communication_is_the_difference_within_each_turn() -> None:
    """The machine halves its speed after the first turn: a difference of medians would be 20."""
    cell = Cell("CNN", 2, 25)
    cell.settle("gloo", [turn(15, 10, 5), turn(30, 20, 7), turn(40, 34, 9)])
    assert cell.iteration_ms == {"gloo": 30}
    assert cell.exposed_ms == {"gloo": 6}
    assert cell.cpu_ms == {"gloo": 6}
    assert cell.alone_ms["gloo"] == {"forward": 1.0, "backward": 18, "update": 1.0}


def cell(ranks: int, bucket_mb: int, **iteration_ms: float) -> Cell:
    return Cell("BERT", ranks, bucket_mb, iteration_ms=iteration_ms)


def test_targets_are_held_against_the_worst_cell() -> None:
    good = [cell(2, 1, securecoll=10, gloo=10, cipherless=1), cell(2, 25, securecoll=10, gloo=11, cipherless=8)]
    assert [verdict.met for verdict in verdicts(good)] == [True, True]
    assert verdicts(good)[0].reached == "1.00x (BERT, 2 ranks, 1 MB); median 0.95x"
    # Four ranks have no target beside gloo, other buckets none beside the cipherless build.
    good.append(cell(4, 1, securecoll=10, gloo=1, cipherless=1))
    assert [verdict.met for verdict in verdicts(good)] == [True, True]
    for worse in (cell(2, 1, securecoll=10.1, gloo=10), cell(4, 25, securecoll=10.1, cipherless=8)):
        found = verdicts([*good, worse])
        assert [verdict.met for verdict in found].count(False) == 1
        assert any(f"{worse.ranks} ranks, {worse.bucket_mb} MB" in str(verdict.reached) for verdict in found)


def test_what_was_not_measured_is_not_met() -> None:
    found = verdicts([cell(4, 5, securecoll=1.0)])
    assert all(verdict.reached is None and not verdict.met for verdict in found)


class Answers:
    """Ranks that report these gradients."""

    def __init__(self, name: str, *gradients: tuple[str, float]) -> None:
        self.kind = peers.Kind(name, Path())
        self._answers = [{"digest": d, "norm": n, "bytes": 8, "tensors": 1} for d, n in gradients]

    def ask(self, command: dict[str, object]) -> list[dict[str, object]]:
        return self._answers


def test_gradients_that_differ_between_ranks_or_contenders_are_wrong() -> None:
    def wrong(*groups: Answers) -> list[str]:
        found = cell(2, 25)
        begin(groups, found)  # type: ignore[arg-type]
        return found.wrong

    ours, theirs = Answers("securecoll", ("a", 2.0), ("a", 2.0)), Answers("gloo", ("b", 2.0001), ("b", 2.0001))
    assert wrong(ours, theirs) == []
    assert wrong(Answers("securecoll", ("a", 2.0), ("c", 2.0)), theirs)[0].startswith("securecoll: ranks")
    assert len(wrong(ours, Answers("gloo", ("b", 2.1), ("b", 2.1)))) == 2
    assert off(float("nan"), 2.0)


def test_every_model_answers_its_batches_and_every_parameter_gets_a_gradient() -> None:
    for workload in workloads(quick=True).values():
        inputs, targets = workload.batch(torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        model = workload.model()
        scores = model(inputs)
        value = loss(scores, targets)
        value.backward()
        assert scores.shape[:-1] == targets.shape, workload.name
        # About what guessing costs: weights are random.
        assert 0 < value.item() < 2 * torch.tensor(float(scores.shape[-1])).log().item(), workload.name
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, f"{workload.name}: {name}"


def megabytes(model: nn.Module) -> float:
    return sum(parameter.numel() for parameter in model.parameters()) * 4 / 1e6


def test_models_cover_buckets_from_one_that_is_never_full_to_many() -> None:
    sizes = {name: megabytes(workload.model()) for name, workload in workloads(quick=False).items()}
    assert sizes["CNN"] < 5 < 25 < sizes["ResNet"] < sizes["BERT"] < 200 < sizes["GPT-2 large"]
    assert sizes["GPT-2 small"] < sizes["GPT-2 large"] / 4


def test_a_decoder_looks_back_only_and_an_encoder_both_ways() -> None:
    numbers = torch.arange(SEQUENCE).unsqueeze(0)
    changed = numbers.clone()
    changed[0, -1] = 99
    for decoder in (True, False):
        torch.manual_seed(0)
        model = Transformer(100, 2, 64, decoder).eval()
        with torch.no_grad():
            same = torch.equal(model(numbers)[0, : SEQUENCE - 1], model(changed)[0, : SEQUENCE - 1])
        assert same == decoder


def test_tokens_are_words_of_a_real_text() -> None:
    words = tokens(1024)
    assert len(words) > 100_000 and words.dtype == torch.int64
    assert int(words.min()) >= 0 and int(words.max()) < 1024
    assert not (words == MASK).any()
    counts = torch.bincount(words, minlength=1024)
    assert counts[2] == counts[2:].max() and (counts[2:] > 0).all(), "numbers go by frequency"


def test_digits_are_pictures_of_what_they_are_labelled() -> None:
    pictures, shown = digits()
    assert pictures.shape == (1797, 1, 8, 8) and pictures.min() >= 0 and pictures.max() == 1
    means = torch.stack([pictures[shown == digit].mean(0).flatten() for digit in range(10)])
    nearest = torch.cdist(pictures.flatten(1), means).argmin(1)
    assert (nearest == shown).float().mean() > 0.85


def test_a_mask_hides_what_is_to_be_predicted() -> None:
    inputs, targets = workloads(True)["BERT"].batch(torch.Generator().manual_seed(0))
    assert torch.equal(inputs == MASK, targets != IGNORED) and (inputs == MASK).any()
    inputs, targets = workloads(True)["GPT-2 small"].batch(torch.Generator().manual_seed(0))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--models", "AlexNet"], "'AlexNet' is none of CNN, ResNet"),
        (["--contenders", "nccl"], "'nccl' is none of"),
        (["--ranks", "1"], "--ranks is at least 2"),
        (["--buckets", "0"], "numbers start at 1"),
        (["--plot", "plot.txt"], ".svg or .png"),
        (["--json", "no/such/folder.json"], "no such folder"),
    ],
)
def test_options_that_cannot_be_are_refused(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(options)
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cuda", "--plot", str(tmp_path / "plot.svg")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "sees no GPU" in result.stderr and "Traceback" not in result.stderr


def test_a_short_run_prints_its_tables_and_writes_its_plot(tmp_path: Path) -> None:
    plot, file = tmp_path / "plot.svg", tmp_path / "out.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--models", "BERT,GPT-2 small", "--buckets", "25"]
    command += ["--rounds", "2", "--seconds", "0.02", "--plot", str(plot), "--json", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stdout + result.stderr
    assert str(plot) in result.stdout and "Targets" in result.stdout and "exposed" in result.stdout
    assert "buckets of 25 MB" in result.stderr, "no progress was shown"
    drawing = plot.read_text()
    assert "<svg" in drawing and "<!-- GPT-2 small, 2 ranks" in drawing
    document = json.loads(file.read_text())
    names = {"securecoll", "gloo", "cipherless"}
    assert [(cell["model"], cell["bucket_mb"]) for cell in document["cells"]] == [("BERT", 25), ("GPT-2 small", 25)]
    for cell in document["cells"]:
        assert cell["wrong"] == [] and cell["bytes"] > 1_000_000
        for figures in (cell["iteration_ms"], cell["exposed_ms"], cell["cpu_ms"], cell["alone_ms"]):
            assert set(figures) == names
        assert all(len(turns) == 2 for turns in cell["turns_ms"].values())
        for name in names:
            assert all(value > 0 for value in (*cell["alone_ms"][name].values(), cell["iteration_ms"][name]))
    versions = document["versions"]
    assert versions["cipherless"].endswith("AEAD cipherless") and "cipherless" not in versions["securecoll"]
