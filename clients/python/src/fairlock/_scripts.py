"""The scripts and the library of functions, composed of the files in `lua/` as PROTOCOL.md says (*Scripts*)."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

# In the order of the library. With the flag that each script has on servers from 7 on.
FLAGS = {
    "acquire": "",
    "release": "allow-oom",
    "renew": "allow-oom",
    "downgrade": "allow-oom",
    "evict": "allow-oom",
    "status": "no-writes",
    "place": "allow-oom",
}


class Script(NamedTuple):
    """A script as it is sent, and its SHA-1."""

    text: str
    sha1: str

    @staticmethod
    def of(text: str) -> Script:
        return Script(text, _sha1(text))


@cache
def lua(file: str) -> str:
    """A file of `lua/`."""
    return (files("fairlock") / "lua" / file).read_bytes().decode()


def _sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _headed(flags: str, body: str, flagged: bool) -> str:
    return f"#!lua{' flags=' * bool(flags)}{flags}\n{body}" if flagged else body


def scripts(flagged: bool) -> dict[str, Script]:
    """The scripts by name. `flagged`: for a server from version 7 on."""
    texts = {name: _headed(flags, lua("lock.lua") + lua(f"{name}.lua"), flagged) for name, flags in FLAGS.items()}
    return {name: Script.of(text) for name, text in texts.items()}


@cache
def library() -> tuple[str, str]:
    """The name of the library of functions, and its text."""
    parts = [lua("lock.lua"), *(lua(f"{name}.lua") for name in FLAGS)]
    name = f"fairlock_{_sha1(''.join(parts))[:16]}"
    text = [f"#!lua name={name}\n", lua("lock.lua")]
    for script, flags in FLAGS.items():
        flag = f"'{flags}'" if flags else ""
        register = f"redis.register_function{{function_name='{name}_{script}',flags={{{flag}}}"
        text += [f"{register},callback=function(KEYS, ARGV)\n", lua(f"{script}.lua"), "end}\n"]
    return name, "".join(text)


def life(flagged: bool) -> str:
    """The script of the quarantine, which is not part of the library."""
    return _headed("allow-oom", lua("life.lua"), flagged)
