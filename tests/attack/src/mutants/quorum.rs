//! Bugs in the client of several servers. The simulation of a quorum catches them.

use super::{Check, Mutant};

const STORMS: Check =
    Check::Attack("simulation::quorum::tests::nothing_is_wrong_in_storms_over_three_and_five_servers");

#[rustfmt::skip]
pub const ALL: &[Mutant] = &[
    Mutant {
        name: "quorum-half-is-enough", file: "src/quorum/tally.rs",
        edits: &[("        self.votes.len() / 2 + 1\n", "        self.votes.len() / 2\n")],
        seen: "invented",
        story: "A request holds by half of the votes, so two of them may hold at the same time.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-without-quarantine", file: "src/quorum/tally.rs",
        edits: &[("(from <= now && (holds || !vote.is_older_than(from))).then_some((at, token))", "(from <= now + self.lease * 1000).then_some((at, token))")],
        seen: "invented",
        story: "A server that has forgotten its holds votes at once.",
        check: Check::Lib("quorum::tally::tests::a_vote_that_was_asked_for_in_the_quarantine_of_its_server_asks_again_when_that_is_over"),
    },
    Mutant {
        name: "quorum-token-of-the-minority", file: "src/quorum/tally.rs",
        edits: &[("let token = granted.iter().map(|(_, token)| *token).max().unwrap_or_default();", "let token = granted.iter().map(|(_, token)| *token).min().unwrap_or_default();")],
        seen: "invented",
        story: "A hold has the least token of its votes, which another majority may have passed.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-token-told-to-one", file: "src/quorum/guard.rs",
        edits: &[("if told.len() >= majority {", "if !told.is_empty() && majority > 0 {")],
        seen: "invented",
        story: "One server knows the token, and the next majority may do without that server.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-without-places", file: "src/quorum/tally.rs",
        edits: &[("(is_due && waits && numbers.len() >= self.majority())", "(is_due && waits && numbers.len() > self.votes.len())")],
        seen: "invented",
        story: "Requests that race never agree on their places: each keeps its votes.",
        check: STORMS,
    },
    Mutant {
        name: "quorum-vote-revoked-after-use", file: "src/quorum/tally.rs",
        edits: &[("(token > self.renounced && !self.placing).then_some(token)", "(token > self.renounced).then_some(token)")],
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
        edits: &[(".filter(|_| offered.is_some());", ".filter(|_| offered.is_none());")],
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
        name: "early-end-of-an-upgrade-forgotten", file: "src/state/claim.rs",
        edits: &[("if token == 1 && !matches!(self.phase, Phase::Asked { .. }) {", "if token == 1 {")],
        seen: "simulate --quorum 3",
        story: "The message that an upgrade has ended overtakes the reply \"queued\": the client waits without a place for a third of its lease.",
        check: Check::Lib("state::claim::tests::a_message_that_an_upgrade_ended_may_overtake_the_reply"),
    },
];
