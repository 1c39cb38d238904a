"""securecoll without its cipher, to measure what the cipher costs. Built here, never installed: see build.py."""
