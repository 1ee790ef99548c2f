------------------------------------- MODULE Trace -------------------------------------
(* The journals of a real run as a behaviour of the specification: each call on the real scripts must do what Server.tla says.

   The journal tells the moment of each call, its arguments, its reply and what became of which request.  So there is one
   behaviour, and TLC walks along it.  A number is in us, and a moment in ms, since the beginning of the run. *)
EXTENDS Server, TLC

CONSTANTS
    Log,
    Client        \* a function: whose request it is

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
      [] e.op = "evict" -> Evict(s, e.owners, past, e.clock)

Status == [holds |-> 2, waits |-> 1, busy |-> 0, conflict |-> -1, already |-> -2, policy |-> -3, interrupted |-> -4, full |-> -5]

PolicyByte(policy) == CASE policy = "w" -> 119 [] policy = "r" -> 114 [] policy = "n" -> 110 [] OTHER -> 0

RankOf(t, r) == Cardinality({q \in Waiting(t) : Before(t.wait[q], q, t.wait[r], r)})

SaidByRenew(reply) == CASE reply.is = "holds" -> reply.token [] reply.is = "waits" -> -reply.seq [] OTHER -> -1

NotTold == -2     \* a reply of one number

Replied(e, t, reply) ==
    CASE e.op = "acquire" ->
            /\ e.told[1] = Status[reply.is]
            /\ CASE reply.is = "holds" -> e.told[2] = reply.token
                 [] reply.is = "waits" -> e.told[2] = reply.ticket /\ e.told[5] = RankOf(t, e.rs[1])
                 [] reply.is = "already" -> IF Client[reply.value] = Client[e.rs[1]] THEN reply.value \in e.already ELSE e.told[2] = 0
                 [] reply.is = "policy" -> e.told[2] = PolicyByte(s.policy)
                 [] OTHER -> e.told[2] = reply.value
            /\ e.told[4] = t.seq \/ (e.told[4] = NotTold /\ e.next = NotTold)
      [] e.op = "renew" ->
            /\ e.told[1] = t.first
            /\ \A n \in DOMAIN e.rs : e.told[n + 1] = SaidByRenew(reply[n])
      [] e.op = "release" -> e.told = reply
      [] OTHER -> e.told = <<reply>>

(* No lease ends before, as far as the reply says that.  One number alone says that nothing is due now, and that no lease was cut. *)
NextIsRight(e, t, after, reply) ==
    IF e.next = NotTold
    THEN e.cut = {} /\ (e.op = "release" \/ (e.op = "acquire" /\ reply.is \in {"holds", "busy"}))
    ELSE IF Known(t) = {} \/ (e.op = "release" /\ Waiting(s) = {}) THEN e.next = -1
    ELSE e.next >= 0 /\ \A r \in Known(t) : e.next <= Max(after[r] - e.now, 0)

(* Whose leases begin anew.  What a downgrade ends has none. *)
Renewed(e) ==
    CASE e.op \in {"acquire", "renew"} -> Range(e.rs) [] e.op = "downgrade" -> {e.rs[2]} [] OTHER -> {}

(* The deadlines, but for cuts.  A plus sign makes none earlier. *)
Uncut(e, t, longest) ==
    [r \in Known(t) |->
        LET n == CHOOSE n \in DOMAIN e.rs : e.rs[n] = r
            new == e.now + e.leases[n]
            end == IF r \notin Renewed(e) THEN ends[r] ELSE IF e.later[n] /\ r \in Known(s) THEN Max(ends[r], new) ELSE new
        IN IF e.op = "renew" /\ end > e.now + longest THEN e.now + longest ELSE end]

Grace == 1000

EndsAfter(e, uncut) ==
    [r \in DOMAIN uncut |-> IF r \in e.cut /\ uncut[r] > e.now + Grace THEN e.now + Grace ELSE uncut[r]]

(* A lease is cut of whom this call let in from the queue, and of waiters from the head on, without a gap.  So a hold of which its
   client heard keeps its lease, and so does what the call names. *)
CutIsRight(e, t, uncut) ==
    LET told == e.entered \cap Waiting(s)
    IN  \/ e.cut = {}
        \/ /\ told # {}
           /\ e.cut \subseteq (told \cup Waiting(t)) \ Range(e.rs)
           /\ \A c \in e.cut \cap Waiting(t), q \in Waiting(t) \ (e.cut \cup Range(e.rs)) :
                  Before(t.wait[q], q, t.wait[c], c) => uncut[q] <= e.now + Grace

TicketOf(e) == IF e.op = "acquire" /\ e.how.ticket > 0 THEN e.how.ticket ELSE Number(s, e.clock)

(* What is not as it must be. *)
Mistakes(e, past, t, reply, uncut) ==
    (IF Replied(e, t, reply) THEN {} ELSE {"reply"})
    \cup (IF t.holds \ s.holds = e.entered THEN {} ELSE {"entered"})
    \cup (IF Waiting(t) \ Waiting(s) = e.queued THEN {} ELSE {"queued"})
    \cup (IF Known(s) \ Known(t) = e.gone THEN {} ELSE {"gone"})
    \cup (IF e.entered # {} /\ e.token # t.token THEN {"token"} ELSE {})
    \cup (IF e.falls THEN {"tokens fall"} ELSE {})
    \cup (IF CutIsRight(e, t, uncut) THEN {} ELSE {"cut"})
    \cup (IF NextIsRight(e, t, EndsAfter(e, uncut), reply) THEN {} ELSE {"next ms"})
    \cup (IF TokensGrow(s, t) THEN {} ELSE {"TokensGrow"})
    \cup (IF NobodyOvertakes(s, t, TicketOf(e)) THEN {} ELSE {"NobodyOvertakes"})

Start == s' = Empty /\ ends' = NoEnds /\ cap' = 0 /\ wrong' = <<>>

Step(e) ==
    LET past == {r \in Known(s) : ends[r] <= e.now}
        done == Done(e, past)
        t == done.state
        longest == IF e.leases = <<>> THEN cap ELSE Max(cap, CHOOSE l \in Range(e.leases) : \A m \in Range(e.leases) : l >= m)
        uncut == Uncut(e, t, longest)
        mistakes == Mistakes(e, past, t, done.reply, uncut)
    IN  /\ s' = t
        /\ ends' = EndsAfter(e, uncut)
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
