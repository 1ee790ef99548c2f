------------------------------------- MODULE Server -------------------------------------
(* What the scripts decide: PROTOCOL.md, "What the scripts decide", as functions from a state of the server to the next one.
   Lock.tla puts clients and a network around these functions, Quorum.tla three servers, Trace.tla the journal of a real run.

   Time is outside: `past` is the set of the requests whose deadline has passed, and `clock` the least next number.
   Batch limits (200 expiries, 1024 grants in one call) and the cut of leases are left out; Trace.tla takes cuts from the journal.

   A state s: wait is a function from the waiting requests to their places <<band, ticket>>, holds is the set of the requests
   that hold; seq, token, first, policy and limit are as in PROTOCOL.md.  The policy is one of "", "w", "r", "n"; "?" is none. *)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS
    Requests,     \* numbers, ordered as the requests' names are
    Writes,       \* the requests to write, a subset of Requests
    Owner,        \* a function: whose request it is
    Named,        \* the requests that name their owner, a subset of Requests
    Weight        \* a function: the weight of the request's owner

Max(a, b) == IF a >= b THEN a ELSE b

NoPlaces == [r \in {} |-> <<0, 0>>]
Empty == [wait |-> NoPlaces, holds |-> {}, seq |-> 0, token |-> 0, first |-> 0, policy |-> "?", limit |-> 0]

Waiting(s) == DOMAIN s.wait
Known(s) == Waiting(s) \cup s.holds
Readers(s) == s.holds \ Writes
Writers(s) == s.holds \cap Writes

(* A number is greater than every one before it, and not behind the clock. *)
Number(s, clock) == Max(s.seq + 1, clock)

------------------------------------------------------------------------------------------
(* The queue. *)

Before(p, r, q, t) ==     \* the place p of r is before the place q of t
    \/ p[1] < q[1]
    \/ p[1] = q[1] /\ p[2] < q[2]
    \/ p = q /\ r < t

First(s) == CHOOSE r \in Waiting(s) : \A t \in Waiting(s) \ {r} : Before(s.wait[r], r, s.wait[t], t)

(* An upgrade is a request to write of an owner that reads. *)
IsUpgrade(s, r) == r \in Writes /\ r \in Named /\ \E h \in Readers(s) : Owner[h] = Owner[r]

Band(s, r) ==
    IF IsUpgrade(s, r) THEN -1
    ELSE IF (s.policy = "w" /\ r \notin Writes) \/ (s.policy = "r" /\ r \in Writes) THEN 1
    ELSE 0

------------------------------------------------------------------------------------------
(* The rules of entry. *)

Inside(s, r) == \E h \in s.holds : Owner[h] = Owner[r] /\ (r \in Named \/ h \in Writes)

(* The weight inside: each owner with a read hold counts once. *)
RECURSIVE Sum(_, _)
Sum(owners, weight) ==
    IF owners = {} THEN 0
    ELSE LET o == CHOOSE o \in owners : TRUE IN weight[o] + Sum(owners \ {o}, weight)

Used(s) ==
    LET owners == {Owner[h] : h \in Readers(s)}
        weight == [o \in owners |-> Weight[CHOOSE h \in Readers(s) : Owner[h] = o]]
    IN Sum(owners, weight)

Fits(s, r) ==
    \/ s.holds = {}
    \/ Inside(s, r) /\ \A h \in s.holds : Owner[h] = Owner[r]
    \/ /\ r \notin Writes
       /\ Writers(s) = {}
       /\ s.policy = "n" => (\E h \in s.holds : Owner[h] = Owner[r]) \/ Used(s) + Weight[r] <= s.limit

(* r enters.  `shared` is the number that readers share whom this admission lets in beside readers; 0: none is drawn yet. *)
Begins(s) == s.holds = {}
BeginsToWrite(s, r) == r \in Writes /\ Writers(s) = {}

Enter(s, r, fromQueue, shared, clock) ==
    LET n == Number(s, clock)
        beside == fromQueue /\ ~Begins(s) /\ ~BeginsToWrite(s, r)
        draws == Begins(s) \/ BeginsToWrite(s, r) \/ (beside /\ shared = 0)
    IN  [s EXCEPT !.holds = @ \cup {r},
                  !.wait = [t \in Waiting(s) \ {r} |-> s.wait[t]],
                  !.seq = IF draws THEN n ELSE @,
                  !.token = IF draws THEN n ELSE @,
                  !.first = IF Begins(s) THEN n ELSE @]

(* The head enters again and again, until it does not fit.  While anybody writes, nobody enters. *)
RECURSIVE AdmitFrom(_, _, _)
AdmitFrom(s, shared, clock) ==
    IF Waiting(s) = {} \/ Writers(s) # {} THEN s
    ELSE LET h == First(s) IN
         IF ~Fits(s, h) THEN s
         ELSE LET t == Enter(s, h, TRUE, shared, clock)
              IN AdmitFrom(t, IF h \in Writes THEN shared ELSE t.token, clock)

Admit(s, clock) == AdmitFrom(s, 0, clock)

------------------------------------------------------------------------------------------
(* Requests end.  An upgrade ends with the last read hold of its owner. *)

Without(s, gone) ==
    LET holds == s.holds \ gone
        reads == {Owner[h] : h \in holds \ Writes}
        ended == {Owner[h] : h \in Readers(s) \cap gone}
        upgrades == {r \in Waiting(s) : s.wait[r][1] = -1 /\ Owner[r] \in ended /\ Owner[r] \notin reads}
    IN [s EXCEPT !.holds = holds, !.wait = [r \in Waiting(s) \ (gone \cup upgrades) |-> s.wait[r]]]

Expire(s, past, clock) ==
    LET gone == past \cap Known(s)
    IN IF gone = {} THEN s ELSE Admit(Without(s, gone), clock)

------------------------------------------------------------------------------------------
(* The scripts.  Each gives a state and a reply. *)

Stands(s, r) ==
    IF r \in s.holds THEN [is |-> "holds", token |-> s.token, first |-> s.first]
    ELSE IF r \in Waiting(s) THEN [is |-> "waits", seq |-> s.seq, ticket |-> s.wait[r][2]]
    ELSE [is |-> "unknown"]

(* How: [try, most, policy, limit, ticket, upgrade, token]; ticket 0 is none, most -1 is any length. *)
Plain == [try |-> FALSE, most |-> -1, policy |-> "", limit |-> 0, ticket |-> 0, upgrade |-> FALSE, token |-> 0]

Refused(s, why, value) == [state |-> s, reply |-> [is |-> why, value |-> value, seq |-> s.seq]]

AcquireNew(s, r, how, clock) ==
    LET grows == how.policy = "n" /\ s.policy = "n" /\ how.limit > s.limit
        limited == [s EXCEPT !.policy = how.policy, !.limit = how.limit]
        a == IF grows THEN Admit(limited, clock) ELSE limited
        others == {t \in Waiting(a) \cap Named : Owner[t] = Owner[r]}
        place == <<Band(a, r), IF how.ticket > 0 THEN how.ticket ELSE Number(a, clock)>>
        aged == [a EXCEPT !.seq = Max(@, how.ticket)]
        ahead == {t \in Waiting(a) : a.wait[t][1] < place[1] \/ (a.wait[t][1] = place[1] /\ a.wait[t][2] <= place[2])}
        first == Waiting(a) = {} \/ Before(place, r, a.wait[First(a)], First(a))
        entered == Enter(aged, r, FALSE, 0, clock)
        queued == [aged EXCEPT !.seq = Max(@, place[2]),
                               !.wait = [t \in Waiting(a) \cup {r} |-> IF t = r THEN place ELSE a.wait[t]]]
    IN  IF s.policy \notin {"?", how.policy} THEN Refused(s, "policy", 0)
        ELSE IF how.upgrade /\ (~IsUpgrade(a, r) \/ a.first > how.token) THEN Refused(IF s.policy = "?" THEN s ELSE a, "interrupted", 0)
        ELSE IF Fits(a, r) /\ (Inside(a, r) \/ first) THEN [state |-> entered, reply |-> Stands(entered, r)]
        ELSE IF r \in Named /\ others # {} THEN Refused(a, "already", CHOOSE t \in others : TRUE)
        ELSE IF place[1] = -1 /\ Waiting(a) # {} /\ a.wait[First(a)][1] = -1 THEN Refused(a, "conflict", 0)
        ELSE IF how.try THEN Refused(a, "busy", 0)
        ELSE IF how.most >= 0 /\ Cardinality(ahead) >= how.most THEN Refused(a, "full", Cardinality(ahead))
        ELSE [state |-> queued, reply |-> Stands(queued, r)]

(* A call renews its own requests before it expires others, so a late call still counts. *)
Acquire(s, r, how, past, clock) ==
    LET e == Expire(s, past \ {r}, clock)
    IN IF r \in Known(e) THEN [state |-> e, reply |-> Stands(e, r)] ELSE AcquireNew(e, r, how, clock)

Told(s, r) ==
    IF r \in Waiting(s) THEN 1 ELSE IF r \notin s.holds THEN 0 ELSE IF r \in Writes THEN s.token ELSE s.first

RECURSIVE ReleaseEach(_, _, _)
ReleaseEach(s, rs, told) ==
    IF rs = <<>> THEN [state |-> s, told |-> told]
    ELSE LET r == rs[1] IN ReleaseEach(Without(s, {r}), Tail(rs), Append(told, Told(s, r)))

Release(s, rs, past, clock) ==
    LET each == ReleaseEach(s, rs, <<>>)
        left == each.state
        own == {rs[i] : i \in DOMAIN rs}
    IN [state |-> IF Waiting(s) = {} THEN left ELSE Admit(Expire(left, past \ own, clock), clock), reply |-> each.told]

Renew(s, rs, past, clock) ==
    LET e == Expire(s, past \ {rs[i] : i \in DOMAIN rs}, clock)
    IN [state |-> e, reply |-> [i \in DOMAIN rs |-> Stands(e, rs[i])]]

(* The read request r takes the place of the write request w.  A known r is renewed, and w stays as it is. *)
Downgrade(s, w, r, past, clock) ==
    LET moves == w \in s.holds /\ r \notin Known(s)
        own == IF moves THEN {w, r} ELSE {r}
        e == Expire(IF moves THEN [s EXCEPT !.holds = (@ \ {w}) \cup {r}] ELSE s, past \ own, clock)
    IN IF r \in e.holds THEN LET t == Admit(e, clock) IN [state |-> t, reply |-> t.first] ELSE [state |-> e, reply |-> -1]

(* By CLIENT:NUMBER an owner is found whatever its weight, so these may be several. *)
Evict(s, owners, past, clock) ==
    LET gone == {r \in Known(s) : Owner[r] \in owners}
        left == Without(s, gone)
        e == Expire(left, past \ gone, clock)
    IN [state |-> IF gone = {} THEN e ELSE Admit(e, clock), reply |-> Cardinality(gone)]

(* For votes: see PROTOCOL.md, "A majority".  A vote with `token` gives up its hold if the head stands before the ticket. *)
Place(s, r, ticket, token, counter, past, clock) ==
    LET e == Expire(s, past \ {r}, clock)
        aged == [e EXCEPT !.seq = Max(Max(@, ticket), counter)]
        place == <<Band(e, r), ticket>>
        alone == \A h \in e.holds \ {r} : Owner[h] # Owner[r]
        same == IF r \in Writes THEN e.token = token ELSE e.first <= token
        behind == Waiting(e) # {} /\ Before(e.wait[First(e)], First(e), place, r)
        moved == [aged EXCEPT !.wait[r] = place]
        left == Without(aged, {r})
        given == [left EXCEPT !.wait = [t \in Waiting(left) \cup {r} |-> IF t = r THEN place ELSE left.wait[t]]]
        next == IF r \notin Known(e) THEN e
                ELSE IF ticket > 0 /\ r \in Waiting(e) /\ e.wait[r][1] # -1 THEN Admit(moved, clock)
                ELSE IF ticket > 0 /\ token > 0 /\ r \in e.holds /\ same /\ alone /\ behind THEN Admit(given, clock)
                ELSE aged
        stands == Stands(next, r)
    \* Without a ticket a waiter is told seq without the counter: no grant has a token between the two.
    IN [state |-> next, reply |-> IF ticket = 0 /\ stands.is = "waits" THEN [stands EXCEPT !.seq = e.seq] ELSE stands]

------------------------------------------------------------------------------------------
(* Invariants of a state, by their numbers in design.md. *)

Exclusive(s) == \A w \in Writers(s), h \in s.holds : Owner[w] = Owner[h]                              \* 1
WithinLimit(s) == s.policy = "n" => Used(s) <= s.limit                                                \* 1
NobodyIsBoth(s) == Waiting(s) \cap s.holds = {}                                                       \* 1
Ordered(s) == s.first <= s.token /\ s.token <= s.seq /\ \A r \in Waiting(s) : s.wait[r][2] <= s.seq   \* 2
HeadIsStuck(s) == Waiting(s) # {} /\ Writers(s) = {} => ~Fits(s, First(s))                             \* 4
OneUpgradeWaits(s) == Cardinality({r \in Waiting(s) : s.wait[r][1] = -1}) <= 1                        \* 9
UpgradesRead(s) == \A r \in Waiting(s) : s.wait[r][1] = -1 => IsUpgrade(s, r)                         \* 9
OneWaitsOfAnOwner(s) ==
    \A r, t \in Waiting(s) \cap Named : Owner[r] = Owner[t] => r = t

(* 7: what is sent twice has the effect of one. *)
TwiceIsOnce(s, past) ==
    LET how == IF s.policy = "?" THEN Plain ELSE [Plain EXCEPT !.policy = s.policy, !.limit = s.limit] IN
    \A r \in Requests :
        /\ LET once == Renew(s, <<r>>, past, 0).state IN Renew(once, <<r>>, {}, 0).state = once
        /\ LET once == Release(s, <<r>>, past, 0).state IN Release(once, <<r>>, {}, 0).state = once
        /\ LET once == Acquire(s, r, how, past, 0)
           IN once.reply.is \in {"holds", "waits"} => Acquire(once.state, r, how, {}, 0) = once
        /\ LET once == Evict(s, {Owner[r]}, past, 0).state IN Evict(once, {Owner[r]}, {}, 0) = [state |-> once, reply |-> 0]
        /\ r \in Named \ Writes =>
               \* A writer that waits may enter by what the first call ended.
               \A w \in (Requests \cap Writes) \ Waiting(s) : Owner[w] = Owner[r] =>
                   LET once == Downgrade(s, w, r, past, 0) IN Downgrade(once.state, w, r, {}, 0) = once

(* 8: a foreign or late release or renewal says so, and changes nothing that the same call without it would not change. *)
ForeignIsNothing(s, past) ==
    \A r \in Requests \ Known(s) :
        /\ LET done == Renew(s, <<r>>, past, 0)
           IN done.reply = <<[is |-> "unknown"]>> /\ done.state = Renew(s, <<>>, past, 0).state
        /\ LET done == Release(s, <<r>>, past, 0)
           IN done.reply = <<0>> /\ done.state = Release(s, <<>>, past, 0).state

(* Of one step from s to t. *)
Entered(s, t) == t.holds \ s.holds
Reenters(s, r) == \E h \in s.holds : Owner[h] = Owner[r]

TokensGrow(s, t) ==     \* 2
    /\ t.token >= s.token /\ t.seq >= s.seq
    /\ \A w \in Entered(s, t) \cap Writes :
           (~ \E h \in Writers(s) \cap t.holds : Owner[h] = Owner[w]) => t.token > s.token
    /\ t.holds # {} /\ {Owner[h] : h \in s.holds} \cap {Owner[h] : h \in t.holds} = {} => t.first > s.token

(* 3: who enters passes nobody who waited before the call and waits after it, but by reentry. *)
NobodyOvertakes(s, t, newcomerTicket) ==
    \A r \in Entered(s, t) :
        ~Reenters(s, r) =>
            LET place == IF r \in Waiting(s) THEN s.wait[r] ELSE <<Band(s, r), newcomerTicket>>
            IN \A q \in Waiting(s) \cap Waiting(t) : Before(place, r, t.wait[q], q)
==========================================================================================
