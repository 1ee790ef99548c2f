//! Bugs in the client of several servers. The simulation of a quorum catches them.

use super::{Check, Mutant};

const STORMS: Check =
    Check::Attack("simulation::quorum::tests::nothing_is_wrong_in_storms_over_three_and_five_servers");

#[rustfmt::skip]
pub const ALL: &[Mutant] = &[
    Mutant {
        name: "quorum-half-is-enough", file: "src/quorum/rules.rs",
        edits: &[("    servers / 2 + 1\n", "    servers / 2\n")],
        seen: "invented",
        story: "A request holds by half of the votes, so two of them may hold at the same time.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-without-quarantine", file: "src/quorum/rules.rs",
        edits: &[("    is_over && (holds || !is_old)\n", "    is_over || holds || is_old || !is_old\n")],
        seen: "invented",
        story: "A server that has forgotten its holds votes at once.",
        check: Check::Lib("quorum::tally::tests::a_vote_that_was_asked_for_in_the_quarantine_of_its_server_asks_again_when_that_is_over"),
    },
    Mutant {
        name: "quorum-token-of-the-minority", file: "src/quorum/rules.rs",
        edits: &[("    tokens.max().unwrap_or_default()\n", "    tokens.min().unwrap_or_default()\n")],
        seen: "invented",
        story: "A hold has the least token of its votes, which another majority may have passed.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-token-told-to-one", file: "src/quorum/rules.rs",
        edits: &[("    servers >= majority\n", "    servers > 0 && majority > 0\n")],
        seen: "invented",
        story: "One server knows the token, and the next majority may do without that server.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-without-places", file: "src/quorum/rules.rs",
        edits: &[("    numbers.iter().max().copied()\n", "    numbers.iter().max().copied().filter(|_| false)\n")],
        seen: "invented",
        story: "Requests that race never agree on their places: each keeps its votes.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-vote-revoked-after-use", file: "src/quorum/rules.rs",
        edits: &[("    token > renounced && !placing\n", "    token > renounced && (placing || !placing)\n")],
        seen: "invented",
        story: "A vote counts while a place that may end it is under way.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-loss-of-a-majority-unnoticed", file: "src/quorum/tally.rs",
        edits: &[("let proven = proven.get(self.majority() - 1).copied()?;", "let proven = proven.first().copied()?;")],
        seen: "invented",
        story: "A hold lasts as long as its last vote.",
        check: Check::Lib("quorum::tally::tests::a_hold_lasts_as_long_as_the_proof_of_a_majority_and_is_lost_for_ever"),
    },
    Mutant {
        name: "quorum-places-never-again", file: "src/quorum/tally.rs",
        edits: &[(".zip(offered)\n", ".zip(offered.filter(|_| false))\n")],
        seen: "invented",
        story: "A waiter keeps a vote although a request before it has come to that server since.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-resent-release-is-a-loss", file: "src/quorum/guard.rs",
        edits: &[("(_, Some(_)) if sent_before => Left::Held,", "([Standing::Unknown], Some(_)) if sent_before => Left::Held,")],
        seen: "simulate --quorum 5",
        story: "The reply to a release is lost, a late copy of the acquire enters, and the second release is told a later token: a false alarm.",
        check: Check::It("quorum::faults::a_release_between_two_copies_of_the_acquire_is_told_as_a_release"),
    },
    Mutant {
        name: "quorum-release-knows-only-votes", file: "src/quorum/guard.rs",
        edits: &[
            ("let mut absent = servers.len() - votes.len() - asked.len();", "let mut absent = 0;"),
            ("for (at, request) in asked {", "for (at, request) in asked.into_iter().take(0) {"),
        ],
        seen: "bench quorum",
        story: "A hold began before the third server had answered, and one of its two voters dies: the release fails.",
        check: Check::It("quorum::faults::a_release_before_the_last_answer_survives_the_loss_of_a_vote"),
    },
    Mutant {
        name: "quorum-gains-before-it-loses", file: "src/quorum/tally.rs",
        edits: &[("let is_lost = self.held_until(clock()).is_none();", "self.hand_out(&granted, now);\n                let is_lost = self.held_until(now).is_none();")],
        seen: "found here, by reading",
        story: "A process sleeps while its hold ends and another one is inside. When it wakes it reads a late grant first, and believes that it held all the time.",
        check: Check::It("quorum::faults::a_hold_that_another_one_interrupted_while_its_process_slept_is_lost"),
    },
    Mutant {
        name: "quorum-evicted-comes-back", file: "src/quorum/tally.rs",
        edits: &[("if vote.is_evicted() {", "if vote.is_evicted() && self.recess.is_none() {")],
        seen: "found here, by reading",
        story: "A waiter that an operator evicted at one server asks that server again after a recess.",
        check: Check::Lib("quorum::tally::tests::an_evicted_vote_does_not_come_back_after_a_recess"),
    },
    Mutant {
        name: "quorum-hold-in-a-recess", file: "src/quorum/tally.rs",
        edits: &[("self.majority() && self.recess.is_none() => {", "self.majority() => {")],
        seen: "found here, by reading",
        story: "A majority answers while a waiter gives its votes back: the hold that begins loses all of them at once.",
        check: Check::Lib("quorum::tally::tests::no_hold_begins_in_a_recess"),
    },
    Mutant {
        name: "quorum-recess-needs-a-ticket", file: "src/quorum/tally.rs",
        edits: &[("if self.asks_since.is_none() && self.is_answered() {", "if self.asks_since.is_none() && self.ticket.is_some() {")],
        seen: "found here, by reading",
        story: "A waiter that never queued keeps the vote of a minority for ever when it is cut off from the others.",
        check: Check::Lib("quorum::tally::tests::a_waiter_without_a_ticket_gives_its_votes_back_too_when_it_reaches_no_majority"),
    },
    Mutant {
        name: "quorum-place-for-ever", file: "src/quorum/tally.rs",
        edits: &[("offered.is_some_and(|(token, _)| token <= vote.renounced)", "offered.is_some_and(|(token, _)| token < 1)")],
        seen: "found here, by reading",
        story: "A server went back to a grant that the vote gave up: the client sends the place again, without any pause.",
        check: Check::Lib("quorum::tally::tests::a_server_that_tells_a_grant_again_that_was_given_up_is_asked_again"),
    },
    Mutant {
        name: "quorum-grant-placed-at-once", file: "src/quorum/tally.rs",
        edits: &[("settled.max(since) +", "settled.min(since) +")],
        seen: "found here, by reading",
        story: "A waiter of more than a second places each of its grants again before it counts them: a hand-over takes a round trip more.",
        check: Check::It("quorum::order::a_hand_over_after_a_long_wait_costs_no_call_of_the_waiter"),
    },
    Mutant {
        name: "quorum-refusals-add-up", file: "src/quorum/tally.rs",
        edits: &[("asked.is_some_and(|asked| asked < since)", "asked.is_some_and(|_| false)")],
        seen: "torture --quorum 3, at a load of 30",
        story: "The memory of one server is exhausted, and then that of another one: the waiter gets an error though a majority was there all the time.",
        check: Check::Lib("quorum::tally::tests::refusals_of_different_times_do_not_add_up"),
    },
    Mutant {
        name: "quorum-limit-before-the-guard", file: "src/quorum/tally.rs",
        edits: &[("self.phase = Phase::Holds { token, until: None };", "self.phase = Phase::Holds { token, until: now.checked_add(self.max_hold) };")],
        seen: "found here, by reading",
        story: "The max_hold begins with the last vote: who looks at its future later gets an error and no guard.",
        check: Check::It("quorum::cancellation::a_bounded_hold_begins_when_its_user_gets_the_guard"),
    },
    Mutant {
        name: "quorum-try-without-end", file: "src/quorum/acquire.rs",
        edits: &[("When::Now => Some(patience),", "When::Now => None,")],
        seen: "found here, by reading",
        story: "One server grants a try, one is busy, the third was never reached: the try waits for it, and keeps its vote.",
        check: Check::It("quorum::cancellation::a_try_ends_while_a_server_was_never_reached"),
    },
    Mutant {
        name: "quorum-shutdown-untold", file: "src/quorum/members.rs",
        edits: &[("if !self.is_closed() {\n            closing.await;\n        }", "closing.await;\n        std::future::pending::<()>().await;")],
        seen: "found here, by reading",
        story: "A shutdown ends the requests at the servers. A waiter in a recess has none, so it waits for ever.",
        check: Check::It("quorum::cancellation::a_shutdown_ends_a_waiter_that_reaches_no_majority"),
    },
    Mutant {
        name: "quorum-loss-untold-outside", file: "src/quorum/ballot.rs",
        edits: &[("        self.ballot.changed.notify_waiters();\n", "")],
        seen: "found here, by reading",
        story: "The runtime of the quorum ends: who waits for the loss outside of a runtime never hears of it.",
        check: Check::It("quorum::outside::a_loss_is_told_outside_of_a_runtime_when_the_quorums_runtime_ends"),
    },
    Mutant {
        name: "quorum-try-asks-once", file: "src/quorum/ballot.rs",
        edits: &[
            ("Phase::Holds { .. } => When::InTurn,", "Phase::Holds { .. } => self.wish.when,"),
            ("                    self.weigh();\n                    self.decided().await;\n                    continue;\n", "                    self.weigh();\n                    return false;\n"),
        ],
        seen: "found here, by reading",
        story: "The hold of a try asks a server that lost it by a try, is told \"busy\", and never asks again.",
        check: Check::It("quorum::faults::a_hold_of_a_try_regains_a_vote_too"),
    },
    Mutant {
        name: "quorum-limit-waits-for-answers", file: "src/quorum/tally.rs",
        edits: &[("            self.asks_since = Some(now);\n            return true;\n", "            self.asks_since = Some(now);\n            return false;\n")],
        seen: "found here, by reading",
        story: "A majority answers a limited wait, and a vote of it does not count yet: the caller goes on waiting for answers, for two call limits.",
        check: Check::Lib("quorum::tally::tests::a_majority_of_grants_holds_with_the_greatest_token_and_a_minority_does_not"),
    },
    Mutant {
        name: "early-end-of-an-upgrade-forgotten", file: "src/state/claim.rs",
        edits: &[("if token == 1 && !matches!(self.phase, Phase::Asked { .. }) {", "if token == 1 {")],
        seen: "simulate --quorum 3",
        story: "The message that an upgrade has ended overtakes the reply \"queued\": the client waits without a place for a third of its lease.",
        check: Check::Lib("state::claim::tests::a_message_that_an_upgrade_ended_may_overtake_the_reply"),
    },
];
