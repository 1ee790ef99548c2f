------------------------------------- MODULE Trace -------------------------------------
(* The journals of a real run as a behaviour of the specification: each call on the real scripts must do what Server.tla says.

   The journal tells the moment of each call, its arguments, its reply and what became of which request.  So there is one
   behaviour, and TLC walks along it.  A number is in us, and a moment in ms, since the beginning of the run. *)
EXTENDS Server, TLC

CONSTANT Log

VARIABLES i, s, ends, cap, wrong

vars == <<i, s, ends, cap, wrong>>

NoEnds == [r \in {} |-> 0]

Init == i = 1 /\ s = Empty /\ ends = NoEnds /\ cap = 0 /\ wrong = <<>>

Range(f) == {f[n] : n \in DOMAIN f}

(* What the script must do. *)
Done(e, past) ==
    CASE e.op = "acquire" -> Acquire(s, e.rs[1], e.how, past, e.clock)
      [] e.op = "release" -> Release(s, e.rs, past, e.clock)
      [] e.op = "renew" -> Renew(s, e.rs, past, e.clock)
      [] e.op = "downgrade" -> Downgrade(s, e.rs[1], e.rs[2], past, e.clock)
      [] e.op = "evict" -> Evict(s, e.owner, past, e.clock)

Status == [holds |-> 2, waits |-> 1, busy |-> 0, conflict |-> -1, already |-> -2, policy |-> -3, interrupted |-> -4, full |-> -5]

RankOf(t, r) == Cardinality({q \in Waiting(t) : Before(t.wait[q], q, t.wait[r], r)})

SaidByRenew(reply) == CASE reply.is = "holds" -> reply.token [] reply.is = "waits" -> -reply.seq [] OTHER -> -1

Replied(e, t, reply) ==
    CASE e.op = "acquire" ->
            /\ e.told[1] = Status[reply.is]
            /\ reply.is = "holds" => e.told[2] = reply.token
            /\ reply.is = "waits" => e.told[2] = reply.ticket /\ e.told[4] = t.seq /\ e.told[5] = RankOf(t, e.rs[1])
            /\ reply.is = "full" => e.told[2] = reply.value
      [] e.op = "renew" ->
            /\ t.holds # {} => e.told[1] = t.first
            /\ \A n \in DOMAIN e.rs : e.told[n + 1] = SaidByRenew(reply[n])
      [] e.op = "release" -> e.told = reply
      [] OTHER -> e.told = <<reply>>

Own(e) == IF e.op \in {"acquire", "renew", "downgrade"} THEN Range(e.rs) ELSE {}

EndsAfter(e, t, longest) ==
    [r \in Known(t) |->
        LET own == {n \in DOMAIN e.rs : e.rs[n] = r}
            end == IF r \in Own(e) THEN e.now + e.leases[CHOOSE n \in own : TRUE] ELSE ends[r]
            near == IF e.op = "renew" /\ end > e.now + longest THEN e.now + longest ELSE end
        IN IF r \in e.cut /\ near > e.now + 1000 THEN e.now + 1000 ELSE near]

TicketOf(e) == IF e.op = "acquire" /\ e.how.ticket > 0 THEN e.how.ticket ELSE Number(s, e.clock)

(* What is not as it must be. *)
Mistakes(e, past, t, reply) ==
    (IF Replied(e, t, reply) THEN {} ELSE {"reply"})
    \cup (IF t.holds \ s.holds = e.entered THEN {} ELSE {"entered"})
    \cup (IF Waiting(t) \ Waiting(s) = e.queued THEN {} ELSE {"queued"})
    \cup (IF Known(s) \ Known(t) = e.gone THEN {} ELSE {"gone"})
    \cup (IF e.entered # {} /\ e.token # t.token THEN {"token"} ELSE {})
    \cup (IF e.cut \subseteq Known(t) \ Own(e) THEN {} ELSE {"cut"})
    \cup (IF TokensGrow(s, t) THEN {} ELSE {"TokensGrow"})
    \cup (IF NobodyOvertakes(s, t, TicketOf(e)) THEN {} ELSE {"NobodyOvertakes"})

Start == s' = Empty /\ ends' = NoEnds /\ cap' = 0 /\ wrong' = <<>>

Step(e) ==
    LET past == {r \in Known(s) : ends[r] <= e.now}
        done == Done(e, past)
        t == done.state
        longest == IF e.leases = <<>> THEN cap ELSE Max(cap, CHOOSE l \in Range(e.leases) : \A m \in Range(e.leases) : l >= m)
        mistakes == Mistakes(e, past, t, done.reply)
    IN  /\ s' = t
        /\ ends' = EndsAfter(e, t, longest)
        /\ cap' = longest
        /\ wrong' = IF mistakes = {} THEN <<>> ELSE <<e.line, mistakes, e, done.reply>>

Next ==
    /\ i <= Len(Log)
    /\ i' = i + 1
    /\ IF Log[i].op = "start" THEN Start ELSE Step(Log[i])

Spec == Init /\ [][Next]_vars

Follows == wrong = <<>>
Server1 == Exclusive(s) /\ NobodyIsBoth(s)
Order2 == Ordered(s)
Stuck4 == HeadIsStuck(s)
Upgrades9 == OneUpgradeWaits(s)
==========================================================================================
