"""How large a world TLC looks at. A request is (number, mode, owner, client) and what it may be besides."""

INVARIANTS = "Server1 Guards1 Truth1 Order2 Steps239 Stuck4 Twice7 Foreign8 Upgrades9 Owners"


def request(mode, owner, client, named=False, base=0, again=0, lower=0, weight=1):
    return dict(mode=mode, owner=owner, client=client, named=named, base=base, again=again, lower=lower, weight=weight)


UPGRADE = [request("r", 1, 1, named=True), request("w", 1, 1, named=True, base=1), request("w", 2, 1), request("r", 3, 2)]
TWO_UPGRADES = [request("r", 1, 1, named=True), request("w", 1, 1, named=True, base=1),
                request("r", 2, 2, named=True), request("w", 2, 2, named=True, base=3)]
PLAIN = [request("w", 1, 1, again=4), request("r", 2, 1), request("w", 3, 2), request("w", 1, 1)]
THREE = [request("w", 1, 1), request("r", 2, 1), request("w", 3, 2)]
DOWNGRADE = [request("w", 1, 1, named=True, lower=2), request("r", 1, 1, named=True), request("w", 2, 2), request("r", 3, 1)]

TWO = THREE[:2]
PERMITS = [request("r", 1, 1), request("r", 2, 1, weight=2), request("r", 3, 2)]
TWO_CLIENTS = [request("w", 1, 1, named=True), request("w", 1, 2, named=True), request("r", 2, 2)]

SCOPES = {
    "owners": dict(small=True, requests=THREE, flight=1, ends=1, what="three owners of two clients; a lease ends too early"),
    "late": dict(small=True, requests=TWO, flight=1, ends=1, copies=1, losses=1,
                 what="a writer and a reader; a call comes twice and late, a reply or a message is lost, a lease ends too early"),
    "upgrade": dict(small=True, requests=TWO_UPGRADES[:3], flight=1, ends=1,
                    what="an owner upgrades beside a reader; a lease ends too early"),
    "accident": dict(small=True, requests=TWO, flight=1, accidents=1,
                     what="the server loses its state, or goes back to an earlier one"),
    "lower": dict(small=True, requests=DOWNGRADE[:3], flight=1, losses=1,
                  what="a writer falls back to reading beside another writer; a reply or a message is lost"),
    "lower-late": dict(small=True, requests=DOWNGRADE[:2], flight=1, copies=1, losses=1,
                       what="a writer falls back to reading; a call comes twice and late, a reply or a message is lost"),
    "shared": dict(small=True, requests=TWO_CLIENTS, flight=1, ends=1,
                   what="an owner writes by two clients, beside a reader; a lease ends too early"),
    "permits": dict(small=True, requests=PERMITS, policy="n", limit=2, flight=1,
                    what="three owners of a semaphore with two permits, without faults"),
    "writers-only": dict(small=True, requests=THREE, policy="w", flight=1, what="writers first, without faults"),
    "readers-only": dict(small=True, requests=THREE, policy="r", flight=1, what="readers first, without faults"),
    "two-upgrades": dict(small=True, requests=TWO_UPGRADES, flight=1, what="two owners upgrade, without faults"),
    "accident-late": dict(requests=TWO, flight=1, copies=1, accidents=1, what="the same, and a call comes twice and late"),
    "loss": dict(requests=THREE, flight=1, ends=1, copies=1, losses=1, what="three owners with every fault but an accident"),
    "accidents": dict(requests=THREE, flight=2, ends=1, copies=1, accidents=1, what="three owners, an accident and other faults"),
    "conflict": dict(requests=TWO_UPGRADES, flight=2, ends=1, what="two owners upgrade"),
    "crowd": dict(requests=UPGRADE, flight=2, ends=1, copies=1, losses=1, what="an upgrade, a writer and a reader, with every fault"),
    "again": dict(requests=PLAIN, flight=2, ends=2, copies=1, what="a waiter loses its place and asks again with its ticket"),
    "downgrade": dict(requests=DOWNGRADE, flight=2, ends=1, losses=1, what="a writer falls back to reading, and others wait"),
    "writers": dict(requests=THREE, policy="w", flight=2, ends=1, copies=1, what="writers first"),
    "readers": dict(requests=THREE, policy="r", flight=2, ends=1, copies=1, what="readers first"),
}
LIVE = {
    "live": dict(small=True, requests=TWO, flight=1, properties="Granted5 Left6",
                 what="everybody enters or is told why not, and leaves nothing, although no message need arrive"),
    "live-faults": dict(requests=THREE, flight=3, ends=1, losses=1, copies=1, properties="Granted5 Left6",
                        what="the same with three owners and faults"),
}
TWO_WRITERS = [request("w", 1, 1), request("w", 2, 2)]
QUORUMS = {
    "quorum": dict(small=True, requests=TWO_WRITERS, what="two writers race at three servers"),
    "lost": dict(requests=TWO_WRITERS, losses=1, what="the same, and a reply or a message is lost"),
    "leases": dict(requests=TWO_WRITERS, losses=1, ends=1, what="the same, and a lease ends"),
    "crash": dict(requests=TWO_WRITERS, crashes=1, what="a server comes back without its data"),
    "mixed": dict(requests=[request("w", 1, 1), request("r", 2, 2)], losses=1, ends=1, what="a writer and a reader"),
    "three": dict(requests=[*TWO_WRITERS, request("w", 3, 2)], what="three writers, without faults"),
    "race": dict(requests=TWO_WRITERS, properties="Granted5", what="each of two writers that race enters"),
}
QUORUM_INVARIANTS = "Majorities1 Servers1 Tokens2"


def values_of(scope, module):
    """The constants of the specification, as TLA+."""
    requests = scope["requests"]
    numbers = range(1, len(requests) + 1)

    def subset(test):
        return "{" + ", ".join(str(n) for n, r in zip(numbers, requests) if test(r)) + "}"

    def functions(*fields):
        return {field.capitalize(): "<<" + ", ".join(str(r[field]) for r in requests) + ">>" for field in fields}

    def budgets(*faults):
        return {fault.capitalize(): scope.get(fault, 0) for fault in faults}

    values = {"Requests": f"1..{len(requests)}", "Writes": subset(lambda r: r["mode"] == "w"), "Named": subset(lambda r: r["named"]),
              **functions("owner", "weight")}
    if module == "Quorum":
        return {**values, "Servers": "1..3", "Majority": 2, **budgets("ends", "losses", "crashes")}
    return {**values, **functions("client", "base", "again", "lower"), "Policy": f'"{scope.get("policy", "")}"',
            "Limit": scope.get("limit", 0), "Flight": scope["flight"], **budgets("ends", "copies", "losses", "accidents")}


def configuration(folder, scope, module):
    values = values_of(scope, module)
    lines = ["---- MODULE MC ----", f"EXTENDS {module}", *(f"mc{key} == {value}" for key, value in values.items()), "===="]
    (folder / "MC.tla").write_text("\n".join(lines) + "\n")
    config = ["CHECK_DEADLOCK FALSE", "CONSTANTS", *(f"  {key} <- mc{key}" for key in values)]
    if "properties" in scope:
        config += ["SPECIFICATION FairSpec", f"PROPERTIES {scope['properties']}"]
    elif module == "Quorum":
        config += ["SPECIFICATION Spec", f"INVARIANTS {QUORUM_INVARIANTS}"]
    else:
        config += ["SPECIFICATION Spec", f"INVARIANTS {INVARIANTS}", "PROPERTIES Parked10"]
    (folder / "MC.cfg").write_text("\n".join(config) + "\n")
