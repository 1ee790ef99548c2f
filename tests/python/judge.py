"""The second judge: what each script must reply, publish and leave behind.

`Lock.call` takes one call and gives what PROTOCOL.md asks for; `judging.py` compares that with what real scripts did. The first
judge is the model in `tests/attack`. This one was written from PROTOCOL.md alone. Later changes of the protocol were made in
the scripts and here together, so for those the judge is no second opinion.

The judge has no clock. TIME is an argument of the call, and a lease ends when the caller puts its request into `past`. No call
comes to a batch limit: see "The scripts decide" for 200 expiries and 1024 grants.
"""

import re

GRACE_MS = 1000
BANDS = 1 << 52
REQUEST = re.compile(r"([rw])([^:]+):(\d+)(?::(.*))?", re.S)


def client(request):
    return REQUEST.fullmatch(request)[2]


def writes(request):
    return request[0] == "w"


def names_owner(request):
    text = REQUEST.fullmatch(request)[4]
    return text is not None and not text.startswith("*")


def owner(request):
    return REQUEST.fullmatch(request)[4] if names_owner(request) else request[1:]


def weight(request):
    found = re.search(r":\*(\d+)$", request)
    return int(found[1]) if found else 1


def unweighted(owner):
    return re.sub(r":\*\d+$", "", owner)


class Options:
    """ARGV[1] of acquire."""

    def __init__(self, text):
        number = {letter: int(digits) for letter, digits in re.findall(r"([nm])(\d+)", text)}
        letters = re.sub(r"[nm]\d+", lambda found: found[0][0], text)
        self.is_try, self.is_upgrade, self.events = "t" in letters, "u" in letters, "e" in letters
        self.is_vote = "q" in letters
        self.policy = next((letter for letter in "wrn" if letter in letters), "")
        self.limit, self.most = number.get("n", 0), number.get("m")


class Answer:
    """What a call must do: `reply` without next ms; messages by client; events."""

    def __init__(self):
        self.reply, self.messages, self.events, self.cut = None, {}, [], False
        # Whether a release says when to look again: somebody waited.
        self.looks = True

    def tell(self, request, number):
        self.messages.setdefault(client(request), []).append((number, request))

    def note(self, what, request, token=0):
        self.events.append((what, request, token))


class Lock:
    def __init__(self):
        self.places = {}        # who waits: (band, ticket)
        self.holders = []       # who holds
        self.leases = {}        # the deadline of each request, ms
        self.past = set()       # the requests whose deadline is over
        self.seq = self.token = self.first = 0
        self.policy, self.limit = None, 0

    # What is asked of the state.

    def known(self, request):
        return request in self.leases

    def queue(self):
        return sorted(self.places, key=lambda request: (self.places[request], request.encode()))

    def of(self, who):
        return [holder for holder in self.holders if owner(holder) == who]

    def readers(self, who=None):
        return [holder for holder in self.holders if not writes(holder) and who in (None, owner(holder))]

    def writer(self):
        return next((owner(holder) for holder in self.holders if writes(holder)), None)

    def used(self):
        return sum({owner(reader): weight("r" + owner(reader)) for reader in self.readers()}.values())

    def inside(self, request):
        return any(names_owner(request) or writes(holder) for holder in self.of(owner(request)))

    def fits(self, request):
        mine = self.of(owner(request))
        if not self.holders or len(mine) == len(self.holders) and self.inside(request):
            return True
        if writes(request) or self.writer() is not None:
            return False
        return self.policy != "n" or bool(mine) or self.used() + weight(request) <= self.limit

    def upgrades(self, request):
        return writes(request) and names_owner(request) and bool(self.readers(owner(request)))

    def band(self, request):
        if self.upgrades(request):
            return -1
        return 1 if (self.policy, writes(request)) in (("w", False), ("r", True)) else 0

    # What changes it.

    def next_number(self, time_us, is_vote=False):
        if is_vote:
            return max((self.seq // 16 + 1) * 16, (time_us // 16384 + 1) * 16384)
        return max(self.seq + 1, time_us)

    def number(self, time_us):
        self.seq = self.next_number(time_us)
        return self.seq

    def enter(self, request, time_us, answer, admission=None):
        """`admission` has the number that readers share whom it lets in beside readers."""
        if not self.holders:
            self.token = self.first = self.number(time_us)
        elif writes(request):
            if self.writer() is None:
                self.token = self.number(time_us)
        elif admission is not None and not admission:
            self.token = self.number(time_us)
        if admission is not None and not writes(request):
            admission[:] = [self.token]
        self.places.pop(request, None)
        self.holders.append(request)
        answer.note("granted", request, self.token)
        if admission is not None:
            answer.tell(request, self.token)

    def admit(self, time_us, answer):
        admission = []
        while self.places and self.writer() is None:
            head = self.queue()[0]
            if not self.fits(head):
                return
            self.enter(head, time_us, answer, admission)

    def end(self, request, what, answer):
        """A request ends, and so may an upgrade, which is noted before."""
        self.end_upgrade(request, answer)
        answer.note("left" if what == "released" and request in self.places else what, request)
        self.forget(request)

    def end_upgrade(self, request, answer):
        """An upgrade ends with the last read hold of its owner, if this is that hold."""
        if self.readers(owner(request)) == [request]:
            for upgrade in [waiter for waiter in self.queue() if self.places[waiter][0] == -1]:
                if owner(upgrade) == owner(request):
                    answer.note("left", upgrade)
                    answer.tell(upgrade, 1)
                    self.forget(upgrade)

    def forget(self, request):
        self.places.pop(request, None)
        del self.leases[request]
        self.past.discard(request)
        if request in self.holders:
            self.holders.remove(request)

    def prolong(self, request, lease, now_ms):
        """With a plus sign a lease makes no deadline earlier."""
        least_ms = self.leases.get(request, 0) if str(lease)[0] == "+" and request not in self.past else 0
        self.leases[request] = max(now_ms + int(lease), least_ms)
        self.past.discard(request)

    def expire(self, time_us, answer, admits=False):
        gone = sorted(self.past, key=lambda request: request.encode())
        for request in gone:
            if self.known(request):
                self.end(request, "expired", answer)
        if gone or admits:
            self.admit(time_us, answer)

    # The scripts.

    def call(self, script, options, args, time_us, listening=lambda client: True):
        """Changes the lock as the script must, and says what else the script must do."""
        answer = Answer()
        getattr(self, script)(Options(options), args, time_us, answer)
        if script in ("acquire", "place"):
            own = args[:1]
        elif script == "renew":
            own = args[::2]
        else:
            own = {"release": args, "downgrade": args[:2], "evict": []}[script]
        self.cut(own, time_us // 1000 + GRACE_MS, answer, listening)
        return answer

    def cut(self, own, until_ms, answer, listening):
        """Nobody hears some grants: their leases and those of the deaf at the head of the queue get short."""
        unheard = {who for who, told in answer.messages.items() if any(n > 1 for n, _ in told) and not listening(who)}
        if not unheard:
            return
        told = [(n, request) for who in unheard for n, request in answer.messages[who]]
        cut = [request for n, request in told if n > 1 and self.known(request)]
        for waiter in self.queue():
            if waiter in own:
                continue
            if client(waiter) not in unheard and listening(client(waiter)):
                break
            cut.append(waiter)
        for request in cut:
            if request not in own and self.leases[request] > until_ms:
                self.leases[request] = until_ms
                answer.cut = True

    def stands(self, request):
        """As a reply of renew has it."""
        if request in self.holders:
            return self.token
        return -self.seq if request in self.places else -1

    def acquire(self, how, args, time_us, answer):
        request, lease, now_ms = args[0], args[1], time_us // 1000
        number = int(args[2]) if len(args) > 2 and args[2] else 0
        if self.known(request):
            self.prolong(request, lease, now_ms)
        self.expire(time_us, answer)
        if not self.known(request):
            refused = self.acquire_new(how, request, number, time_us, answer)
            if refused:
                answer.reply = refused
                return
            self.prolong(request, lease, now_ms)
        if request in self.holders:
            answer.reply = (2, self.token)
        else:
            answer.reply = (1, self.places[request][1], self.queue().index(request))

    def acquire_new(self, how, request, number, time_us, answer):
        """None: it entered or queued. Otherwise the status and the value of the reply."""
        if self.policy not in (None, how.policy):
            return (-3, ord(self.policy) if self.policy else 0)
        unused, self.policy = self.policy is None, how.policy
        if how.policy == "n":
            grew, self.limit = how.limit > self.limit, how.limit
            if grew:
                self.admit(time_us, answer)
        if how.is_upgrade and (not self.readers(owner(request)) or self.first > number):
            # A lock without keys stays without.
            self.policy, self.limit = (None, 0) if unused else (self.policy, self.limit)
            return (-4, 0)
        ticket = 0 if how.is_upgrade else number
        queue, band = self.queue(), self.band(request)
        place = (band, ticket or self.next_number(time_us, how.is_vote))
        leads = not queue or (place, request.encode()) < (self.places[queue[0]], queue[0].encode())
        if self.fits(request) and (self.inside(request) or leads):
            self.seq = max(self.seq, ticket)
            self.enter(request, time_us, answer)
            return None
        others = [waiter for waiter in queue if names_owner(waiter) and owner(waiter) == owner(request)]
        if names_owner(request) and others:
            other = others[0]
            return (-2, int(REQUEST.fullmatch(other)[3]) if client(other) == client(request) else 0)
        if band == -1 and queue and self.places[queue[0]][0] == -1:
            return (-1, 0)
        if how.is_try:
            return (0, 0)
        before = sum(self.places[waiter] <= place for waiter in queue)
        if how.most is not None and before >= how.most:
            return (-5, before)
        self.seq = max(self.seq, place[1])
        self.places[request] = place
        answer.note("queued", request)
        return None

    def release(self, _how, args, time_us, answer):
        waited, told = bool(self.places), []
        answer.looks = waited
        for request in args:
            if request in self.places:
                told.append(1)
            elif request in self.holders:
                told.append(self.token if writes(request) else self.first)
            else:
                told.append(0)
            if self.known(request):
                self.end(request, "released", answer)
        if waited:
            self.expire(time_us, answer, admits=True)
        answer.reply = told

    def prolong_known(self, requests, time_us):
        for request, lease in requests:
            if self.known(request):
                self.prolong(request, lease, time_us // 1000)

    def renew(self, _how, args, time_us, answer):
        requests = args[::2]
        self.prolong_known(zip(requests, args[1::2]), time_us)
        self.expire(time_us, answer)
        answer.reply = [self.first, *[self.stands(request) for request in requests]]

    def downgrade(self, _how, args, time_us, answer):
        write, read, lease = args
        if write in self.holders and not self.known(read):
            self.prolong(read, int(lease), time_us // 1000)
            self.holders.append(read)
            answer.note("granted", read, self.token)
            self.end(write, "released", answer)
        else:
            self.prolong_known([(read, lease)], time_us)
        self.expire(time_us, answer)
        done = read in self.holders
        if done:
            self.admit(time_us, answer)
        answer.reply = [self.first if done else -1]

    def evict(self, _how, args, time_us, answer):
        mine = [request for request in self.leases if args[0] in (owner(request), unweighted(owner(request)))]
        mine.sort(key=str.encode, reverse=True)
        for request in mine:
            answer.note("evicted", request)
            answer.tell(request, 0)
            self.forget(request)
        self.expire(time_us, answer, admits=bool(mine))
        answer.reply = [len(mine)]

    def place(self, _how, args, time_us, answer):
        request, lease, ticket, token, counter = args
        ticket, token, counter = int(ticket or 0), int(token or 0), int(counter or 0)
        self.prolong_known([(request, lease)], time_us)
        self.expire(time_us, answer)
        if self.known(request):
            self.seq = max(self.seq, ticket, counter if ticket else 0)
            if ticket and request in self.places and self.places[request][0] != -1:
                self.places[request] = (self.places[request][0], ticket)
                self.admit(time_us, answer)
            elif ticket and token and request in self.holders:
                self.give_up(request, ticket, token, time_us, answer)
        answer.reply = [self.first, self.stands(request)]
        # Without a ticket a waiter is told `seq` without the counter: no grant has a token between the two.
        if self.known(request):
            self.seq = max(self.seq, counter)

    def give_up(self, request, ticket, token, time_us, answer):
        queue = self.queue()
        later = (self.token if writes(request) else self.first) > token
        if later or len(self.of(owner(request))) > 1 or not queue:
            return
        place = (self.band(request), ticket)
        if (self.places[queue[0]], queue[0].encode()) < (place, request.encode()):
            self.end_upgrade(request, answer)
            self.holders.remove(request)
            self.places[request] = place
            answer.note("queued", request)
            self.admit(time_us, answer)
