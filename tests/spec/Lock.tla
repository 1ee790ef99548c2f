-------------------------------------- MODULE Lock --------------------------------------
(* Clients, a network and one server: PROTOCOL.md, "What a client must do", "Believing" and "Losing".

   Time.  A lease is a deadline on the server's clock, and what a reply proves is a moment on the client's clock that is never
   later: it counts from the sending.  So one step, LeaseEnds, is "the deadline of r passes": the proof of r's client is over, and
   no reply that was made before proves anything any more.  The server may remove r from then on, and does so in a later call.

   The network.  A call is executed at any time or never.  A copy of a call may be executed at any later time (Copy).  Replies
   and messages get lost.  A client sends a call again until a reply comes.  A request has one such call under way; copies beside
   it are `late`, and nobody reads their replies.  The clients of the library may have several under way: make torture has those.

   Faults have budgets, so that there are finitely many states: `left`. *)
EXTENDS Server

CONSTANTS
    Client,       \* a function: which client made the request
    Base,         \* a function: the read request that an upgrade is sent for; 0: none
    Again,        \* a function: the request by which a waiter asks again that lost its place; 0: none
    Lower,        \* a function: the read request that a downgrade puts in the place of this write request; 0: none
    Policy,
    Limit,        \* of a semaphore; 0: none
    Flight,       \* how many calls and replies may be under way, without late copies
    Ends,         \* how many deadlines pass although their client lives
    Copies,       \* how many late copies of calls are executed
    Losses,       \* how many replies and messages are lost
    Accidents     \* how often the server loses its state or goes back to an earlier one

VARIABLES
    s,            \* the server's state
    past,         \* the known requests whose deadline has passed
    calls,        \* under way to the server
    replies,      \* under way to a client
    messages,     \* grants under way to a client
    claim,        \* what the client knows of each request
    left,         \* the budgets
    snap,         \* an earlier state of the server, which it may go back to
    excused,      \* the requests that an accident may have interrupted, and that no later call has told of it
    peak,         \* the greatest token of all, for invariant 2
    right         \* every script so far kept invariants 2, 3 and 9

vars == <<s, past, calls, replies, messages, claim, left, snap, excused, peak, right>>

Idle == [is |-> "idle", token |-> 0, seq |-> 0, early |-> 0, ticket |-> 0, proof |-> FALSE, due |-> FALSE]

Init ==
    /\ s = Empty /\ past = {} /\ calls = {} /\ replies = {} /\ messages = {}
    /\ claim = [r \in Requests |-> Idle]
    /\ left = [ends |-> Ends, copies |-> Copies, losses |-> Losses, accidents |-> Accidents]
    /\ snap = Empty /\ excused = {} /\ peak = 0 /\ right = TRUE

Is(r, states) == claim[r].is \in states
Lives(r) == Is(r, {"asked", "waits", "granted", "held"})
(* The user may go on: a guard. *)
Guards == {r \in Requests : claim[r].is = "held"}

Spend(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]
UnderWay(r, op) == (\E c \in calls : c.r = r /\ c.op = op /\ ~c.late) \/ (\E p \in replies : p.r = r /\ p.op = op)

(* A claim ends.  A release is due, because the request may stand at the server. *)
Over(c) == [c EXCEPT !.is = "over", !.due = TRUE, !.proof = FALSE]

------------------------------------------------------------------------------------------
(* What a client sends. *)

Send(op, r, ticket) ==
    /\ Cardinality({c \in calls : ~c.late}) + Cardinality(replies) < Flight
    /\ calls' = calls \cup {[op |-> op, r |-> r, ticket |-> ticket, late |-> FALSE, knew |-> Is(r, {"granted", "held"})]}

Ask(r) ==
    /\ Is(r, {"idle"})
    /\ \A t \in Requests : Again[t] # r /\ Lower[t] # r
    /\ Base[r] # 0 => Is(Base[r], {"held"})
    /\ r \in Named => \A t \in Named \ {r} : Owner[t] = Owner[r] /\ Client[t] = Client[r] => ~Is(t, {"asked", "waits"})
    /\ claim' = [claim EXCEPT ![r].is = "asked"]
    /\ Send("acquire", r, 0)
    /\ UNCHANGED <<s, past, replies, messages, left, snap, excused, peak, right>>

Resend(r) ==
    /\ Is(r, {"asked"}) /\ \A w \in Requests : Lower[w] # r
    /\ ~UnderWay(r, "acquire")
    /\ Send("acquire", r, claim[r].ticket)
    /\ UNCHANGED <<s, past, replies, messages, claim, left, snap, excused, peak, right>>

RenewOne(r) ==
    /\ Is(r, {"waits", "granted", "held"})
    /\ ~UnderWay(r, "renew")
    /\ Send("renew", r, 0)
    /\ UNCHANGED <<s, past, replies, messages, claim, left, snap, excused, peak, right>>

(* The user leaves, at any time. *)
Leave(r) ==
    /\ Lives(r)
    /\ \A w \in Requests : Lower[w] = r => ~Is(w, {"lowering"})
    /\ claim' = [claim EXCEPT ![r] = Over(@)]
    /\ UNCHANGED <<s, past, calls, replies, messages, left, snap, excused, peak, right>>

(* Until it is answered. *)
ReleaseOne(r) ==
    /\ Is(r, {"over"}) /\ claim[r].due
    /\ ~UnderWay(r, "release")
    /\ Send("release", r, 0)
    /\ UNCHANGED <<s, past, replies, messages, claim, left, snap, excused, peak, right>>

(* The user has given the write guard up. *)
DowngradeOne(w) ==
    /\ Lower[w] # 0 /\ Is(w, {"held", "lowering"}) /\ Is(Lower[w], {"idle", "asked"})
    /\ ~UnderWay(w, "downgrade")
    /\ claim' = [claim EXCEPT ![Lower[w]].is = "asked", ![w].is = "lowering"]
    /\ Send("downgrade", w, 0)
    /\ UNCHANGED <<s, past, replies, messages, left, snap, excused, peak, right>>

------------------------------------------------------------------------------------------
(* The server executes a call. *)

Run(c) ==
    CASE c.op = "acquire" ->
            Acquire(s, c.r, [Plain EXCEPT !.policy = Policy, !.limit = Limit, !.ticket = c.ticket,
                                          !.upgrade = Base[c.r] # 0,
                                          !.token = IF Base[c.r] # 0 THEN claim[Base[c.r]].token ELSE 0], past, 0)
      [] c.op = "renew" -> LET done == Renew(s, <<c.r>>, past, 0) IN [state |-> done.state, reply |-> done.reply[1]]
      [] c.op = "downgrade" ->
            LET done == Downgrade(s, c.r, Lower[c.r], past, 0)
            IN [state |-> done.state, reply |-> [is |-> "told", told |-> done.reply]]
      [] c.op = "release" ->
            LET done == Release(s, <<c.r>>, past, 0) IN [state |-> done.state, reply |-> [is |-> "told", told |-> done.reply[1]]]

Own(c) == IF c.op = "downgrade" THEN {c.r, Lower[c.r]} ELSE {c.r}

(* A release without waiters expires nobody.  All other calls expire whom they do not renew. *)
PastAfter(c, t) == IF c.op = "release" /\ Waiting(s) = {} THEN (past \ {c.r}) \cap Known(t) ELSE {}

(* The messages to those who entered from the queue. *)
Published(t, own) ==
    {[r |-> r, token |-> t.token] : r \in (Entered(s, t) \cap Waiting(s)) \ own}
    \cup {[r |-> r, token |-> 1] : r \in {q \in Waiting(s) \ (past \cup Known(t) \cup own) : s.wait[q][1] = -1}}

Kept(c, t) ==
    /\ Entered(s, t) # {} => TokensGrow([s EXCEPT !.token = peak], t)
    /\ NobodyOvertakes(s, t, IF c.ticket > 0 THEN c.ticket ELSE s.seq + 1)
    /\ c.op = "downgrade" /\ c.r \in s.holds => Lower[c.r] \in t.holds

Effect(c, done) ==
    /\ s' = done.state
    /\ past' = PastAfter(c, done.state)
    /\ messages' = messages \cup Published(done.state, Own(c))
    /\ peak' = Max(peak, done.state.token)
    /\ right' = (right /\ Kept(c, done.state))

Execute(c) ==
    LET done == Run(c)
        reply == [op |-> c.op, r |-> c.r, knew |-> c.knew, proves |-> TRUE, after |-> c.r \in excused, says |-> done.reply]
    IN  /\ c \in calls
        /\ Effect(c, done)
        /\ IF c.late THEN calls' = calls \ {c} /\ UNCHANGED <<replies, left>>
           ELSE /\ replies' = replies \cup {reply}
                /\ \/ calls' = calls \ {c} /\ UNCHANGED left
                   \/ /\ c.op = "acquire"
                      /\ Spend("copies")
                      /\ calls' = (calls \ {c}) \cup {[c EXCEPT !.late = TRUE]}
        /\ UNCHANGED <<claim, snap, excused>>

LoseReply(p) ==
    /\ p \in replies /\ Spend("losses")
    /\ replies' = replies \ {p}
    /\ UNCHANGED <<s, past, calls, messages, claim, snap, excused, peak, right>>

LoseMessage(m) ==
    /\ m \in messages /\ Spend("losses")
    /\ messages' = messages \ {m}
    /\ UNCHANGED <<s, past, calls, replies, claim, snap, excused, peak, right>>

------------------------------------------------------------------------------------------
(* A client hears. *)

Interrupted(r, token, says) == IF r \in Writes THEN says.token > token ELSE says.first > token

(* A grant is over if a reply says "waits" that the server made after the grant. *)
GrantIsOver(c, p) == p.knew \/ p.says.seq >= c.token

OnAcquired(c, p) ==
    LET says == p.says IN
    IF c.is = "over" THEN Over(c)     \* an orphan, maybe
    ELSE CASE says.is = "holds" -> [c EXCEPT !.is = "granted", !.token = says.token, !.proof = p.proves]
           [] says.is = "waits" ->
                [c EXCEPT !.is = IF c.early > says.seq THEN "granted" ELSE "waits", !.token = IF c.early > says.seq THEN c.early ELSE 0,
                          !.seq = says.seq, !.ticket = says.ticket, !.proof = p.proves]
           [] OTHER -> Over(c)

OnRenewed(r, c, p) ==
    LET says == p.says IN
    CASE c.is = "over" -> c
      [] says.is = "unknown" -> Over(c)
      [] says.is = "holds" ->
            IF c.is = "waits" THEN [c EXCEPT !.is = "granted", !.token = says.token, !.proof = p.proves]
            ELSE IF ~Interrupted(r, c.token, says) THEN [c EXCEPT !.proof = @ \/ p.proves]
            ELSE IF c.is = "held" THEN Over(c)
            ELSE [c EXCEPT !.token = says.token, !.proof = p.proves]
      [] says.is = "waits" ->
            IF c.is = "waits" THEN [c EXCEPT !.seq = Max(@, says.seq), !.proof = @ \/ p.proves]
            ELSE IF ~GrantIsOver(c, p) THEN [c EXCEPT !.proof = @ \/ p.proves]
            ELSE IF c.is = "held" THEN Over(c)
            ELSE [c EXCEPT !.is = "waits", !.token = 0, !.seq = Max(@, says.seq), !.proof = p.proves]

(* A waiter that lost its place asks again, under a new name, with its ticket. *)
AskedAgain(r, c, p) ==
    /\ p.op = "renew" /\ p.says.is = "unknown" /\ c.is \in {"waits", "granted"}
    /\ Again[r] # 0 /\ Base[r] = 0 /\ claim[Again[r]].is = "idle"

Reply(p) ==
    LET r == p.r
        c == claim[r]
        n == Lower[r]
        told == p.says.told
        again == AskedAgain(r, c, p)
        own == CASE p.op = "acquire" -> OnAcquired(c, p)
                 [] p.op = "renew" -> OnRenewed(r, c, p)
                 [] p.op = "release" -> [c EXCEPT !.due = FALSE]
                 [] p.op = "downgrade" -> IF told = -1 THEN Over(c) ELSE [c EXCEPT !.is = "over", !.proof = FALSE]
        lower == [claim[n] EXCEPT !.is = "held", !.token = c.token, !.proof = TRUE]
    IN  /\ p \in replies
        /\ replies' = replies \ {p}
        /\ claim' = IF again THEN [claim EXCEPT ![r] = own, ![Again[r]] = [Idle EXCEPT !.is = "asked", !.ticket = c.ticket]]
                    ELSE IF p.op = "downgrade"
                    THEN [claim EXCEPT ![r] = own,
                                       ![n] = IF c.is = "lowering" /\ p.proves /\ told # -1 /\ told <= c.token
                                              THEN lower ELSE Over(@)]
                    ELSE [claim EXCEPT ![r] = own]
        /\ IF again
           THEN calls' = calls \cup {[op |-> "acquire", r |-> Again[r], ticket |-> c.ticket, late |-> FALSE, knew |-> FALSE]}
           ELSE UNCHANGED calls
        /\ excused' = IF p.after THEN excused \ {r} ELSE excused
        /\ UNCHANGED <<s, past, messages, left, snap, peak, right>>

OnMessage(c, token) ==
    CASE token = 1 -> IF c.is = "held" THEN c ELSE Over(c)
      [] c.is = "asked" -> [c EXCEPT !.early = Max(@, token)]
      [] c.is = "waits" /\ token > c.seq -> [c EXCEPT !.is = "granted", !.token = token]
      [] c.is = "over" -> [c EXCEPT !.due = TRUE]     \* an orphan: duty 7
      [] OTHER -> c

Message(m) ==
    /\ m \in messages
    /\ messages' = messages \ {m}
    /\ claim' = [claim EXCEPT ![m.r] = OnMessage(@, m.token)]
    /\ UNCHANGED <<s, past, calls, replies, left, snap, excused, peak, right>>

(* A guard needs a grant and a proof.  An upgrade needs its read hold too. *)
HandOut(r) ==
    /\ Is(r, {"granted"}) /\ claim[r].proof
    /\ Base[r] # 0 => Is(Base[r], {"held"})
    /\ claim' = [claim EXCEPT ![r].is = "held"]
    /\ UNCHANGED <<s, past, calls, replies, messages, left, snap, excused, peak, right>>

------------------------------------------------------------------------------------------
(* Time, and accidents. *)

Unproven(c) == IF c.is = "held" THEN Over(c) ELSE [c EXCEPT !.proof = FALSE]

(* Of a request that its client has given up no deadline is waited for: that costs no budget. *)
LeaseEnds(r) ==
    /\ r \in Known(s) \ past
    /\ IF Is(r, {"over"}) THEN UNCHANGED left ELSE Spend("ends")
    /\ past' = past \cup {r}
    /\ claim' = [claim EXCEPT ![r] = Unproven(@)]
    /\ replies' = {IF p.r = r \/ (p.op = "downgrade" /\ Lower[p.r] = r) THEN [p EXCEPT !.proves = FALSE] ELSE p : p \in replies}
    /\ UNCHANGED <<s, calls, messages, snap, excused, peak, right>>

(* Redis removes the keys of a lock after its last deadline, and somebody who looks finds the lease over: duty 4. *)
Sweep ==
    /\ past # {}
    /\ LET t == Renew(s, <<>>, past, 0).state IN
       /\ s' = t /\ past' = {} /\ peak' = Max(peak, t.token)
       /\ messages' = messages \cup Published(t, {})
       /\ right' = (right /\ (Entered(s, t) # {} => TokensGrow([s EXCEPT !.token = peak], t)) /\ NobodyOvertakes(s, t, s.seq + 1))
    /\ UNCHANGED <<calls, replies, claim, left, snap, excused>>

Remember ==
    /\ left.accidents > 0 /\ snap = Empty /\ snap # s
    /\ snap' = s
    /\ UNCHANGED <<s, past, calls, replies, messages, claim, left, excused, peak, right>>

(* The server is empty, or as it was.  The clock goes on, so no number comes again. *)
Accident ==
    /\ Spend("accidents")
    /\ \E t \in {Empty, snap} : s' = [t EXCEPT !.seq = s.seq]
    /\ past' = {}
    /\ excused' = {r \in Requests : ~Is(r, {"idle"})}
    /\ UNCHANGED <<calls, replies, messages, claim, snap, peak, right>>

------------------------------------------------------------------------------------------
Next ==
    \/ \E r \in Requests :
          Ask(r) \/ Resend(r) \/ RenewOne(r) \/ Leave(r) \/ ReleaseOne(r) \/ DowngradeOne(r) \/ HandOut(r) \/ LeaseEnds(r)
    \/ \E c \in calls : Execute(c)
    \/ \E p \in replies : Reply(p) \/ LoseReply(p)
    \/ \E m \in messages : Message(m) \/ LoseMessage(m)
    \/ Sweep \/ Remember \/ Accident

Spec == Init /\ [][Next]_vars

(* Calls get through and are answered in the end, and users leave.  Nothing is said of messages: none need arrive. *)
ExecuteOf(r) == \E c \in calls : c.r = r /\ Execute(c)
ReplyOf(r) == \E p \in replies : p.r = r /\ Reply(p)
Fair ==
    /\ WF_vars(Sweep)
    /\ \A r \in Requests :
          /\ WF_vars(ExecuteOf(r)) /\ WF_vars(ReplyOf(r))
          /\ WF_vars(Resend(r)) /\ WF_vars(RenewOne(r)) /\ WF_vars(ReleaseOne(r)) /\ WF_vars(HandOut(r))
          /\ WF_vars(Is(r, {"lowering"}) /\ DowngradeOne(r))
          /\ WF_vars(Is(r, {"held"}) /\ Leave(r))
          /\ WF_vars(Is(r, {"over"}) /\ LeaseEnds(r))

FairSpec == Spec /\ Fair

------------------------------------------------------------------------------------------
(* The invariants, by their numbers in design.md. *)

Excusable(rs) == rs \cap excused # {}

Server1 == Exclusive(s) /\ WithinLimit(s) /\ NobodyIsBoth(s)
Guards1 ==
    \A a \in Guards, b \in Guards : Owner[a] # Owner[b] /\ (a \in Writes \/ b \in Writes) => Excusable({a, b})
(* A guard is the truth: the server keeps the hold, with that token. *)
Truth1 ==
    \A r \in Guards \ excused :
        /\ r \in s.holds
        /\ IF r \in Writes THEN s.token = claim[r].token ELSE s.first <= claim[r].token /\ claim[r].token <= s.token
Order2 == Accidents > 0 \/ Ordered(s)
Steps239 == right
Stuck4 == HeadIsStuck(s)
Twice7 == TwiceIsOnce(s, past)
Foreign8 == ForeignIsNothing(s, past)
Upgrades9 == OneUpgradeWaits(s) /\ UpgradesRead(s)
Owners == OneWaitsOfAnOwner(s)

(* 10: what a client sends for a parked waiter is renewals. *)
Parked10 ==
    [][\A c \in calls' \ calls : Is(c.r, {"waits"}) /\ ~c.late => c.op = "renew"]_vars

(* 5: every live waiter is granted, or told why not. *)
Granted5 == \A r \in Requests : Is(r, {"asked", "waits", "granted"}) ~> Is(r, {"held", "over"})
(* 6: after everybody has left, nobody is in the lock. *)
Left6 == <>[](\A r \in Requests : Is(r, {"idle", "over"})) => <>[](Known(s) = {})
==========================================================================================
