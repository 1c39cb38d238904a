"""Which image of the kernels a GPU is given, and what is said when there is none. CuPy is played here."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from securecoll import ConfigError, cuda
from securecoll.cuda import modules
from securecoll.cuda.confidential import Confidential, confidential


class FakeCupy(types.ModuleType):
    """What :mod:`securecoll.cuda.modules` uses of CuPy, for one GPU."""

    class CUDARuntimeError(RuntimeError):
        pass

    class CompileException(Exception):
        pass

    def __init__(self, capability: str, shared: int = 227 << 10) -> None:
        super().__init__("cupy")
        self.loaded: list[bytes] = []
        self.options: tuple[str, ...] = ()
        self.breaks = False
        fake = self

        class Device:
            def __init__(self, ordinal: int) -> None:
                if ordinal != 0:
                    raise FakeCupy.CUDARuntimeError("invalid device ordinal")
                self.compute_capability = capability
                self.attributes = {"MaxSharedMemoryPerBlockOptin": shared}

            def __enter__(self) -> None:
                fake.current = True

            def __exit__(self, *_: object) -> None:
                fake.current = False

        class Module:
            def load(self, image: bytes) -> None:
                assert fake.current, "loaded while another device was current"
                fake.loaded.append(image)

            def get_function(self, name: str) -> Any:
                return types.SimpleNamespace(ptr=1000 + modules.KERNELS.index(name))

        def compile_using_nvrtc(source: str, options: tuple[str, ...]) -> tuple[bytes, dict[str, str]]:
            if fake.breaks:
                raise FakeCupy.CompileException("no such architecture")
            assert "commit.cu" in source
            fake.options = options
            return b"compiled", {}

        compiler = types.SimpleNamespace(
            compile_using_nvrtc=compile_using_nvrtc, CompileException=FakeCupy.CompileException
        )
        self.current = False
        self.cuda = types.SimpleNamespace(
            Device=Device,
            runtime=types.SimpleNamespace(CUDARuntimeError=FakeCupy.CUDARuntimeError),
            function=types.SimpleNamespace(Module=Module),
            compiler=compiler,
        )


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(capability: str, *shared: int) -> FakeCupy:
        fake = FakeCupy(capability, *shared)
        monkeypatch.setitem(sys.modules, "cupy", fake)
        return fake

    return install


def _cubins(folder: Path, *capabilities: int) -> None:
    (folder / "cuda").mkdir()
    for c in capabilities:
        (folder / "cuda" / f"sm_{c}.cubin").write_bytes(b"sm_%d" % c)


@pytest.mark.parametrize(
    ("capability", "there", "loaded"),
    [
        ("90", (80, 90, 100), b"sm_90"),
        ("86", (80, 90, 100), b"sm_80"),  # a cubin also runs on later minor versions
        ("80", (86, 90), b"compiled"),  # but not on earlier ones,
        ("120", (80, 90, 100), b"compiled"),  # nor on another major one
    ],
)
def test_the_image_that_fits_the_gpu_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cupy: Any, capability: str, there: tuple[int, ...], loaded: bytes
) -> None:
    fake = cupy(capability)
    _cubins(tmp_path, *there)
    (tmp_path / "cuda" / "securecoll.cu").write_text('#include "commit.cu"')
    monkeypatch.setattr(modules, "sources", lambda: tmp_path)
    module = modules.load(0)
    assert fake.loaded == [loaded]
    assert module.functions == {name: 1000 + i for i, name in enumerate(modules.KERNELS)}


def test_nvrtc_gets_the_flags_that_keep_sums_equal_to_the_hosts(cupy: Any) -> None:
    fake = cupy("90")
    modules.load(0)
    assert {"-std=c++17", "-fmad=false"} <= set(fake.options)
    assert not any("ftz" in option or "fast" in option for option in fake.options)


@pytest.mark.parametrize("kernel", modules.KERNELS)
def test_every_kernel_that_is_asked_for_is_in_the_sources(kernel: str) -> None:
    sources = [path.read_text() for path in (modules.sources() / "cuda").glob("*.cu")]
    assert sum(f"SC_KERNEL({kernel}," in text for text in sources) == 1


def test_what_is_missing_is_named(cupy: Any) -> None:
    cupy("75")
    with pytest.raises(ConfigError, match=r"no kernels for compute capability 7\.5; 8\.0 \(Ampere\) is the oldest"):
        modules.load(0)
    cupy("89", 99 << 10)
    with pytest.raises(ConfigError, match=r"capability 8\.9, has 99 KiB of shared memory for a block.* need 128"):
        modules.load(0)
    cupy("90")
    with pytest.raises(ConfigError, match="CUDA device 3 cannot be used: invalid device ordinal"):
        modules.load(3)
    cupy("90").breaks = True
    with pytest.raises(ConfigError, match="NVRTC does not compile the kernels: no such architecture"):
        modules.load(0)


class FakeNvml(types.ModuleType):
    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(value)
            self.value = value

    def __init__(self, feature: int, tools: int, error: int) -> None:
        super().__init__("pynvml")
        self.feature, self.tools, self.error = feature, tools, error

    def nvmlInit(self) -> None:
        if self.error == 9:
            raise self.NVMLError(9)

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetConfComputeState(self) -> Any:
        if self.error:
            raise self.NVMLError(self.error)
        return types.SimpleNamespace(ccFeature=self.feature, devToolsMode=self.tools)


@pytest.mark.parametrize(
    ("feature", "tools", "error", "mode"),
    [
        (1, 0, 0, Confidential.ON),
        (1, 1, 0, Confidential.DEVELOPERS),
        (0, 0, 0, Confidential.OFF),
        (0, 0, 3, Confidential.OFF),  # not supported: from before there was such a mode
        (0, 0, 9, Confidential.UNKNOWN),  # no driver
        (0, 0, 15, Confidential.UNKNOWN),  # the GPU is lost
    ],
)
def test_the_confidential_mode_is_the_drivers_word(
    monkeypatch: pytest.MonkeyPatch, feature: int, tools: int, error: int, mode: Confidential
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(feature, tools, error))
    assert confidential() is mode


@pytest.mark.parametrize("mode", list(Confidential))
def test_slots_are_mapped_only_where_confidential_mode_is_known_to_be_off(
    monkeypatch: pytest.MonkeyPatch, mode: Confidential
) -> None:
    monkeypatch.setattr(cuda, "_devices", {})
    monkeypatch.setattr(cuda, "confidential", lambda: mode)
    monkeypatch.setattr(cuda, "load", lambda ordinal: modules.Module({}, "nowhere", None))
    monkeypatch.setattr(cuda, "_engine", types.SimpleNamespace(Device=types.SimpleNamespace(cuda=lambda *_: object())))
    made = cuda.device(0)
    assert made.mapped is (mode is Confidential.OFF)
    assert made.copies_block is not made.mapped
    assert cuda.device(0) is made


def test_the_shared_memory_asked_for_is_what_kernels_take() -> None:
    text = (modules.sources() / "cuda" / "launch.hpp").read_text()
    assert f"kSharedBytes = {modules.SHARED_BYTES};" in text
