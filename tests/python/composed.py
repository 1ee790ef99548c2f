"""What a client sends to the server: the scripts, and the library of functions, composed of the files in lua/."""

import hashlib
import json
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Other scripts than ours, to see a check fail.
LUA = pathlib.Path(os.environ.get("FAIRLOCK_LUA") or ROOT / "lua")


def sha1(text):
    return hashlib.sha1(text.encode()).hexdigest()


def composition():
    return json.loads((ROOT / "tests/conformance/scripts.json").read_text())


def text_of(*files):
    return "".join((LUA / file).read_text() for file in files)


def scripts(flagged):
    """The scripts by name, composed of the files in lua/."""
    composed = {}
    for name, script in composition()["scripts"].items():
        text = text_of(*script["files"])
        flags = f" flags={script['flags']}" if script["flags"] else ""
        composed[name] = f"#!lua{flags}\n{text}" if flagged else text
    return composed


def library():
    """The name of the library of functions, and its text. The name changes with every file that is in the text."""
    parts = composition()["library"]
    h = sha1(text_of(*parts["H"]))[:16]
    text = [text_of(part["file"]) if isinstance(part, dict) else part.replace("_H", f"_{h}") for part in parts["text"]]
    return parts["name"].replace("_H", f"_{h}"), "".join(text)
