------------------------------------- MODULE Quorum -------------------------------------
(* One lock, kept by three servers that know nothing of each other: PROTOCOL.md, "A majority".

   Each server is a state of Server.tla.  Each request has a vote at each server.  Acquire, release and the counter are executed
   and answered in one step; Lock.tla has the network between the two.  A place takes two steps, because a vote does not count
   between them, and its reply may be lost.  Messages come late or never.  A request has one claim at a client of its own. *)
EXTENDS Server

CONSTANTS
    Servers, Majority,
    Ends,         \* how many leases of votes end too early
    Losses,       \* how many replies and messages are lost
    Crashes       \* how many servers come back without their data

VARIABLES
    at,           \* the state of each server
    quarantined,  \* the servers that came back a short while ago
    vote,         \* what a client knows of its request at a server
    claim,        \* what a client knows of its request
    messages,     \* grants under way
    left,         \* the budgets
    peak          \* the greatest token that was valid

vars == <<at, quarantined, vote, claim, messages, left, peak>>

(* is: asked, waits, granted, placing (a place without a token is under way), yielding (one with a token is), void, over. *)
NoVote == [is |-> "idle", token |-> 0, seq |-> 0, proven |-> FALSE, placed |-> FALSE, counted |-> FALSE, early |-> FALSE]
(* floor: the greatest token that was valid when the hold began. *)
NoClaim == [is |-> "idle", ticket |-> 0, token |-> 0, floor |-> 0]

Init ==
    /\ at = [i \in Servers |-> Empty] /\ quarantined = {}
    /\ vote = [r \in Requests |-> [i \in Servers |-> NoVote]]
    /\ claim = [r \in Requests |-> NoClaim]
    /\ messages = {} /\ left = [ends |-> Ends, losses |-> Losses, crashes |-> Crashes]
    /\ peak = 0

Counts(r, i) == LET v == vote[r][i] IN v.is = "granted" /\ v.proven /\ ~v.early /\ v.token > v.seq
Votes(r) == {i \in Servers : Counts(r, i)}
Answered(r) == {i \in Servers : vote[r][i].is \notin {"idle", "asked"}}
Greatest(numbers) == CHOOSE n \in numbers : \A m \in numbers : n >= m

Spend(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]
Published(i, t, own) == {[r |-> r, i |-> i, token |-> t.token] : r \in (Entered(at[i], t) \cap Waiting(at[i])) \ own}
Becomes(i, t, own) == at' = [at EXCEPT ![i] = t] /\ messages' = messages \cup Published(i, t, own)

(* The vote after a reply.  A grant during quarantine never counts. *)
Heard(v, i, says) ==
    CASE says.is = "holds" -> [v EXCEPT !.is = "granted", !.token = says.token, !.proven = TRUE, !.early = i \in quarantined]
      [] says.is = "waits" -> [v EXCEPT !.is = "waits", !.seq = Max(@, says.seq), !.proven = TRUE]
      [] OTHER -> [v EXCEPT !.is = "void", !.proven = FALSE]

------------------------------------------------------------------------------------------
Ask(r) ==
    /\ claim[r].is = "idle"
    /\ claim' = [claim EXCEPT ![r].is = "asked"]
    /\ vote' = [vote EXCEPT ![r] = [i \in Servers |-> [NoVote EXCEPT !.is = "asked"]]]
    /\ UNCHANGED <<at, quarantined, messages, left, peak>>

(* With the ticket of the claim, if there is one: the vote was lost, or the server was slow. *)
Acquired(r, i) ==
    /\ vote[r][i].is = "asked" /\ claim[r].is \in {"asked", "waits", "held"}
    /\ LET done == Acquire(at[i], r, [Plain EXCEPT !.ticket = claim[r].ticket], {}, 0)
       IN /\ Becomes(i, done.state, {r})
          /\ vote' = [vote EXCEPT ![r][i] = Heard([@ EXCEPT !.placed = claim[r].ticket > 0], i, done.reply)]
    /\ UNCHANGED <<quarantined, claim, left, peak>>

Tickets(r) == {at[i].wait[r][2] : i \in {j \in Answered(r) : r \in Waiting(at[j])}}
           \cup {vote[r][i].token : i \in {j \in Answered(r) : vote[r][j].is = "granted"}}

Hold(r) ==
    /\ claim[r].is \in {"asked", "waits"} /\ Cardinality(Votes(r)) >= Majority
    /\ claim' = [claim EXCEPT ![r].is = "held", ![r].floor = peak,
                                ![r].token = Greatest({vote[r][i].token : i \in Votes(r)})]
    /\ UNCHANGED <<at, quarantined, vote, messages, left, peak>>

Agree(r) ==
    /\ claim[r].is = "asked" /\ Cardinality(Votes(r)) < Majority
    /\ Cardinality(Answered(r)) >= Majority /\ Tickets(r) # {}
    /\ claim' = [claim EXCEPT ![r].is = "waits", ![r].ticket = Greatest(Tickets(r))]
    /\ UNCHANGED <<at, quarantined, vote, messages, left, peak>>

(* A waiter's vote is placed once; a granted one again and again, because a request before it may have come to that server. *)
Place1(r, i) ==
    LET v == vote[r][i] IN
    /\ claim[r].is = "waits"
    /\ (v.is = "waits" /\ ~v.placed) \/ (v.is = "granted" /\ Waiting(at[i]) # {})
    /\ vote' = [vote EXCEPT ![r][i].is = IF v.is = "waits" THEN "placing" ELSE "yielding", ![r][i].placed = TRUE]
    /\ UNCHANGED <<at, quarantined, claim, messages, left, peak>>

Placed(r, i) ==
    LET v == vote[r][i]
        done == Place(at[i], r, claim[r].ticket, IF v.is = "yielding" THEN v.token ELSE 0, 0, {}, 0)
    IN  /\ v.is \in {"placing", "yielding"}
        /\ Becomes(i, done.state, {r})
        /\ \/ vote' = [vote EXCEPT ![r][i] = Heard(v, i, done.reply)] /\ UNCHANGED left
           \/ vote' = [vote EXCEPT ![r][i] = [v EXCEPT !.is = "void", !.proven = FALSE]] /\ Spend("losses")
        /\ UNCHANGED <<quarantined, claim, peak>>

(* A message tells of a grant, and a later place may have taken it back. *)
Message(m) ==
    LET v == vote[m.r][m.i] IN
    /\ m \in messages
    /\ messages' = messages \ {m}
    /\ vote' = IF v.is \in {"waits", "placing"} /\ m.token > v.seq
               THEN [vote EXCEPT ![m.r][m.i] = [v EXCEPT !.is = "granted", !.token = m.token, !.early = m.i \in quarantined]]
               ELSE vote
    /\ UNCHANGED <<at, quarantined, claim, left, peak>>

LoseMessage(m) ==
    /\ m \in messages /\ Spend("losses")
    /\ messages' = messages \ {m}
    /\ UNCHANGED <<at, quarantined, vote, claim, peak>>

(* A renewal tells what a message tells.  A hold that was interrupted is lost. *)
Renewed(r, i) ==
    LET done == Renew(at[i], <<r>>, {}, 0)
        says == done.reply[1]
        v == vote[r][i]
        interrupted == says.is # "holds" \/ (IF r \in Writes THEN says.token ELSE says.first) > v.token
        heard == IF v.is = "granted" /\ interrupted THEN [v EXCEPT !.is = "void", !.proven = FALSE]
                 ELSE IF v.is = "granted" THEN [v EXCEPT !.proven = TRUE] ELSE Heard(v, i, says)
    IN  /\ v.is \in {"waits", "granted"} /\ heard # v
        /\ at' = [at EXCEPT ![i] = done.state]
        /\ vote' = [vote EXCEPT ![r][i] = heard]
        /\ UNCHANGED <<quarantined, claim, messages, left, peak>>

(* A void vote is released, and asks again.  (Under a new name; the old one is over at the server.) *)
AskAgain(r, i) ==
    /\ vote[r][i].is = "void" /\ claim[r].is = "waits"
    /\ Becomes(i, Release(at[i], <<r>>, {}, 0).state, {r})
    /\ vote' = [vote EXCEPT ![r][i] = [NoVote EXCEPT !.is = "asked"]]
    /\ UNCHANGED <<quarantined, claim, left, peak>>

(* The counter makes the token valid once a majority has it. *)
Count(r, i) ==
    /\ claim[r].is = "held" /\ Counts(r, i) /\ ~vote[r][i].counted
    /\ LET done == Place(at[i], r, 0, 0, claim[r].token, {}, 0)
       IN done.reply.is = "holds" /\ at' = [at EXCEPT ![i] = done.state]
    /\ vote' = [vote EXCEPT ![r][i].counted = TRUE]
    /\ UNCHANGED <<quarantined, claim, messages, left, peak>>

Valid(r) == claim[r].is = "held" /\ Cardinality({i \in Votes(r) : vote[r][i].counted}) >= Majority

Use(r) ==
    /\ Valid(r) /\ peak < claim[r].token
    /\ peak' = claim[r].token
    /\ UNCHANGED <<at, quarantined, vote, claim, messages, left>>

Leave(r) ==
    /\ claim[r].is \in {"asked", "waits", "held"}
    /\ claim' = [claim EXCEPT ![r] = [NoClaim EXCEPT !.is = "over"]]
    /\ UNCHANGED <<at, quarantined, vote, messages, left, peak>>

Released(r, i) ==
    /\ claim[r].is = "over" /\ vote[r][i].is # "over"
    /\ Becomes(i, Release(at[i], <<r>>, {}, 0).state, {r})
    /\ vote' = [vote EXCEPT ![r][i] = [NoVote EXCEPT !.is = "over"]]
    /\ UNCHANGED <<quarantined, claim, left, peak>>

------------------------------------------------------------------------------------------
LoseVotes(lost) ==
    LET next == [r \in Requests |-> [i \in Servers |->
                    IF <<r, i>> \in lost THEN [vote[r][i] EXCEPT !.proven = FALSE, !.is = IF @ = "granted" THEN "void" ELSE @]
                    ELSE vote[r][i]]]
        still(r) == {i \in Votes(r) : <<r, i>> \notin lost}
    IN  /\ vote' = next
        /\ claim' = [r \in Requests |->
                        IF claim[r].is = "held" /\ Cardinality(still(r)) < Majority
                        THEN [NoClaim EXCEPT !.is = "over"] ELSE claim[r]]

LeaseEnds(r, i) ==
    /\ r \in Known(at[i]) /\ Spend("ends")
    /\ LoseVotes({<<r, i>>})
    /\ Becomes(i, Expire(at[i], {r}, 0), {})
    /\ UNCHANGED <<quarantined, peak>>

(* The clock goes on, so the server repeats no number: PROTOCOL.md, "A majority", and docs/quorum.md, "Clocks". *)
Crash(i) ==
    /\ Spend("crashes") /\ quarantined = {}
    /\ at' = [at EXCEPT ![i] = [Empty EXCEPT !.seq = at[i].seq]]
    /\ quarantined' = {i}
    /\ UNCHANGED <<vote, claim, messages, peak>>

(* The longest lease is over, and with it every proof from before. *)
QuarantineEnds(i) ==
    /\ i \in quarantined
    /\ quarantined' = {}
    /\ LoseVotes({<<r, i>> : r \in {q \in Requests : ~(vote[q][i].is = "granted" /\ vote[q][i].early)}})
    /\ UNCHANGED <<at, messages, left, peak>>

Next ==
    \/ \E r \in Requests : Ask(r) \/ Hold(r) \/ Agree(r) \/ Leave(r) \/ Use(r)
    \/ \E r \in Requests, i \in Servers :
          \/ Acquired(r, i) \/ Place1(r, i) \/ Placed(r, i) \/ Renewed(r, i) \/ AskAgain(r, i) \/ Count(r, i) \/ Released(r, i)
          \/ LeaseEnds(r, i)
    \/ \E m \in messages : Message(m) \/ LoseMessage(m)
    \/ \E i \in Servers : Crash(i) \/ QuarantineEnds(i)

Spec == Init /\ [][Next]_vars

FairSpec ==
    /\ Spec
    /\ \A r \in Requests : WF_vars(Hold(r)) /\ WF_vars(Agree(r)) /\ WF_vars(claim[r].is = "held" /\ Leave(r))
    /\ \A r \in Requests, i \in Servers :
          WF_vars(Acquired(r, i)) /\ SF_vars(Place1(r, i)) /\ WF_vars(Placed(r, i)) /\ WF_vars(Renewed(r, i))
          /\ WF_vars(AskAgain(r, i)) /\ WF_vars(Released(r, i))

------------------------------------------------------------------------------------------
Guards == {r \in Requests : claim[r].is = "held"}

Majorities1 == \A a, b \in Guards : Owner[a] # Owner[b] => {a, b} \cap Writes = {}
Servers1 == \A i \in Servers : Exclusive(at[i]) /\ HeadIsStuck(at[i])
Tokens2 == \A r \in Guards \cap Writes : Valid(r) => claim[r].token > claim[r].floor

Granted5 == \A r \in Requests : claim[r].is \in {"asked", "waits"} ~> claim[r].is \in {"held", "over"}
==========================================================================================
