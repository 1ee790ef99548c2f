"""Mistakes in the specification, each with the smallest scope that shows it and what then does not hold."""

from scopes import SCOPES, request

WRITER_READER = [request("w", 1, 1), request("r", 2, 2)]
WRITERS = [request("w", 1, 1), request("w", 2, 2)]


def mutant(name, file, old, new, breaks, requests=None, module="Lock", scope=None, **budgets):
    small = scope or dict(requests=requests, flight=1, **budgets)
    return dict(name=name, file=file, old=old, new=new, breaks=breaks.split(), scope=small, module=module)


MUTANTS = [
    mutant("a writer enters beside a reader", "Server.tla", "    \\/ /\\ r \\notin Writes\n", "    \\/ /\\ TRUE\n", "Server1 Steps239",
           WRITER_READER),
    mutant("a proof counts from the reply", "Lock.tla", "THEN [p EXCEPT !.proves = FALSE] ELSE p : p \\in replies}",
           "THEN p ELSE p : p \\in replies}", "Guards1 Truth1", WRITERS, ends=1),
    mutant("a client believes in a hold that the server does not know", "Lock.tla", '[] says.is = "unknown" -> Over(c)',
           '[] says.is = "unknown" -> c', "Truth1", WRITERS[:1], accidents=1),
    mutant("a phase has the token of the phase before", "Server.tla", "!.token = IF draws THEN n ELSE @", "!.token = @", "Steps239 Order2",
           WRITERS[:1]),
    mutant("a newcomer passes the queue", "Server.tla", "Fits(a, r) /\\ (Inside(a, r) \\/ first)", "Fits(a, r)", "Steps239",
           [request("r", 1, 1), request("w", 2, 1), request("r", 3, 2)]),
    mutant("a release admits nobody", "Server.tla", "THEN left ELSE Admit(Expire(left, past \\ own, clock), clock)",
           "THEN left ELSE Expire(left, past \\ own, clock)", "Stuck4", WRITER_READER),
    mutant("a waiter never learns of its grant by a renewal", "Lock.tla",
           'IF c.is = "waits" THEN [c EXCEPT !.is = "granted", !.token = says.token, !.proof = p.proves]',
           'IF c.is = "waits" THEN c',
           "Temporal", WRITERS, properties="Granted5"),
    mutant("a hold has no lease", "Lock.tla", "r \\in Known(s) \\ past\n    /\\ IF",
           "r \\in Waiting(s) \\ past\n    /\\ IF", "Temporal", WRITERS[:1], copies=1, properties="Left6"),
    mutant("an acquire that comes again takes another ticket", "Server.tla", "IN IF r \\in Known(e) THEN", "IN IF r \\in e.holds THEN",
           "Twice7", WRITER_READER),
    mutant("a release of what nobody knows says that it waited", "Server.tla", "IF r \\notin s.holds THEN 0 ELSE",
           "IF r \\notin s.holds THEN 1 ELSE", "Foreign8", WRITERS[:1]),
    mutant("an upgrade outlives its read hold", "Server.tla",
           "upgrades == {r \\in Waiting(s) : s.wait[r][1] = -1 /\\ Owner[r] \\in ended /\\ Owner[r] \\notin reads}", "upgrades == {}",
           "Upgrades9", SCOPES["upgrade"]["requests"], ends=1),
    mutant("two upgrades wait for each other", "Server.tla", "place[1] = -1 /\\ Waiting(a) # {}", "FALSE /\\ Waiting(a) # {}",
           "Upgrades9", SCOPES["conflict"]["requests"]),
    mutant("a downgrade lets go of the lock", "Server.tla", "(@ \\ {w}) \\cup {r}", "@ \\ {w}", "Steps239",
           [request("w", 1, 1, named=True, lower=2), request("r", 1, 1, named=True)]),
    mutant("a downgrade that comes again says that its writer did not hold", "Server.tla", "IN IF r \\in e.holds THEN LET t == Admit",
           "IN IF moves /\\ r \\in e.holds THEN LET t == Admit", "Twice7",
           [request("w", 1, 1, named=True, lower=2), request("r", 1, 1, named=True)]),
    mutant("an eviction counts requests that are over", "Server.tla", "gone == {r \\in Known(s) : Owner[r] \\in owners}",
           "gone == {r \\in Requests : Owner[r] \\in owners}", "Twice7", WRITERS[:1]),
    mutant("a parked waiter asks again", "Lock.tla", '/\\ Is(r, {"asked"}) /\\ \\A w', '/\\ Is(r, {"asked", "waits"}) /\\ \\A w', "Parked10",
           WRITERS),
    mutant("two requests of an owner wait", "Server.tla", "r \\in Named /\\ others # {}", "FALSE", "Owners",
           SCOPES["shared"]["requests"]),
    mutant("a semaphore has a permit more", "Server.tla", "Used(s) + Weight[r] <= s.limit", "Used(s) + Weight[r] <= s.limit + 1",
           "Server1", SCOPES["permits"]["requests"], policy="n", limit=2),
    mutant("one vote is enough", "Quorum.tla", '{"asked", "waits"} /\\ Cardinality(Votes(r)) >= Majority',
           '{"asked", "waits"} /\\ Cardinality(Votes(r)) >= 1', "Majorities1", module="Quorum", requests=WRITERS),
    mutant("a vote in quarantine counts", "Quorum.tla", "/\\ v.proven /\\ ~v.early", "/\\ v.proven", "Majorities1", module="Quorum",
           requests=WRITERS, crashes=1),
]


# Mistakes in a journal: what a wrong script would have written, and what Trace.tla must say of it. A change gets a call and who
# held before it, and gives what differs, or nothing if the call is no place for it.

def cuts_a_writer(call, holds):
    others = sorted(request for request in holds if request[0] == "w" and request not in call["args"])
    return call["script"] == "renew" and others and dict(notes=[*call["notes"], ["cut", others[0], 0]])


def renewal(n, value):
    """Another number in the reply of a renewal: 0 is next ms, 1 is first."""
    def change(call, holds):
        reply = call["reply"]
        fits = call["script"] == "renew" and (reply[0] > 0 if n == 0 else not holds and reply[1] > 0)
        return fits and dict(reply=[*reply[:n], value(reply[n]), *reply[n + 1:]])
    return change


def refusal(n, value, fits):
    """Another number in the reply of an acquire: 1 is the value, 3 is seq."""
    def change(call, _):
        reply = call["reply"]
        return call["script"] == "acquire" and fits(reply) and dict(reply=[*reply[:n], value(reply[n]), *reply[n + 1:]])
    return change


def tokens_fall(call, _):
    granted = [n for n, (what, _, _) in enumerate(call["notes"]) if what == "granted"]
    if len(granted) < 2:
        return None
    notes = [list(note) for note in call["notes"]]
    notes[granted[0]][2] = notes[granted[-1]][2] + 1
    return dict(notes=notes)


def forgets_the_plus(call, _):
    """Of a lease that is shorter than next ms."""
    args, reply = call["args"], call["reply"]
    if call["script"] == "acquire":
        leases, next_ms = [(1, reply[0] > 0)], reply[2]
    else:
        leases, next_ms = [(2 * n + 1, stands != -1) for n, stands in enumerate(reply[2:])], reply[0]
    for n, known in leases if call["script"] in ("acquire", "renew") else []:
        if known and args[n][0] == "+" and next_ms > int(args[n]):
            return dict(args=[*args[:n], args[n][1:], *args[n + 1:]])
    return None


JOURNALS = [
    ("a foreign renewal cuts the lease of a writer that holds", "cut", cuts_a_writer),
    ("a renewal tells a time after the next deadline", "next ms", renewal(0, lambda ms: ms + 10**6)),
    ("a renewal tells that nothing is due, and a lease lasts", "next ms", renewal(0, lambda _: -1)),
    ("a renewal tells another first, and nobody holds", "reply", renewal(1, lambda first: first + 1)),
    ("an owner that waits is not told by which request", "reply", refusal(1, lambda _: 0, lambda reply: reply[0] == -2 and reply[1] > 0)),
    ("an owner that waits is told another request", "reply", refusal(1, lambda n: n + 1, lambda reply: reply[0] == -2 and reply[1] > 0)),
    ("a refusal tells another seq", "reply", refusal(3, lambda seq: seq + 1, lambda reply: reply[0] < 0)),
    ("of two grants the first has the greater token", "tokens fall", tokens_fall),
    ("a lease with a plus sign is as one without", "next ms", forgets_the_plus),
]
