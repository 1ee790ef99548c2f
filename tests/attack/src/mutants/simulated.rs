//! Bugs in least times, lock delays, several locks in one guard and the search for deadlocks. Each breaks one thing that
//! the simulation judges.

use super::{Check, Mutant};

const fn simulate(
    name: &'static str,
    file: &'static str,
    edits: &'static [(&'static str, &'static str)],
    story: &'static str,
) -> Mutant {
    Mutant {
        name,
        file,
        edits,
        seen: "invented",
        story,
        check: Check::Simulate,
    }
}

#[rustfmt::skip]
pub const ALL: &[Mutant] = &[
    // ---- least times
    simulate("half-of-the-least-time", "src/state/claim/keep.rs",
        &[("self.kept_until.max(Some(now + self.at_least))", "self.kept_until.max(Some(now + self.at_least / 2))")],
        "Others enter when half of the least time is over."),
    simulate("no-least-time-for-permits", "src/acquire.rs",
        &[("claim.keeping(self.at_least, self.lock_delay)", "claim.keeping(self.permits.map_or(self.at_least, |_| Duration::ZERO), self.lock_delay)")],
        "Permits have no least time."),
    simulate("least-time-and-half-a-lease", "src/state/claim/keep.rs",
        &[("self.kept_until?.saturating_duration_since(now)", "(self.kept_until? + self.lease / 2).saturating_duration_since(now)")],
        "A hold that its user has left outlasts its least time."),
    Mutant {
        name: "a-crash-costs-more-than-the-least-time", file: "src/state/claim/keep.rs",
        edits: &[("                self.at_least + self.lease / 2\n", "                self.at_least * 4 + self.lease / 2\n")],
        seen: "invented",
        story: "A process ends right after its grant: others wait for four least times. That is rare in the simulation.",
        check: Check::Lib("state::claim::tests::keep::a_crash_after_a_grant_costs_the_least_time_and_a_lease_at_most"),
    },
    // ---- lock delays
    simulate("a-fraction-of-the-lock-delay", "src/state/claim/keep.rs",
        &[("at.map(|at| at + self.lock_delay)", "at.map(|at| at + self.lock_delay / 2)")],
        "What max_hold has ended keeps others out for half of the delay."),
    simulate("lock-delay-only-while-the-process-lives", "src/state/claim/keep.rs",
        &[("            lock_delay,\n", "            lock_delay: lock_delay / 8,\n"), ("at + self.lock_delay)", "at + self.lock_delay * 8)")],
        "A process ends, or is cut off, and others enter when its lease ends."),
    simulate("three-lock-delays", "src/state/claim/keep.rs",
        &[("(lease + with_margin(self.lock_delay)).max", "(lease + with_margin(self.lock_delay * 3)).max")],
        "After a crash others wait for three delays."),
    Mutant {
        seen: "found here, by simulation",
        ..simulate("unnoticed-loss-without-the-lock-delay", "src/state/claim/keep.rs",
            &[("        self.expire(now);\n        self.end(EndedBy::Released);\n", "        let _ = now;\n        self.end(EndedBy::Released);\n")],
            "max_hold ends several locks in one guard, and the guard is dropped at once: all but one are released.")
    },
    simulate("all-without-the-lock-delay", "src/all.rs",
        &[(".lock_delay(self.lock_delay);", ".lock_delay(self.lock_delay / 8);")],
        "Several locks in one guard do not have the delay of the client."),
    // ---- several locks in one guard
    simulate("all-keeps-its-place-at-the-limit", "src/all.rs",
        &[("acquire.telling(leaver).lease", "acquire.lease")],
        "The limit of a call for several locks is over: the call ends before its request has left the queue."),
    simulate("all-leaks-its-holds-after-an-error", "src/all.rs",
        &[("                next = asking => next?,\n", "                next = asking => match next {\n                    Err(error) => {\n                        all.holds.into_iter().for_each(std::mem::forget);\n                        return Err(error);\n                    }\n                    Ok(next) => next,\n                },\n")],
        "The queue of one lock is full, and the locks before it stay with the request for ever."),
    // A guard that is long enough in hand for one of its locks to be lost alone is rare in the simulation.
    Mutant {
        check: Check::It("several::loss::the_guard_is_lost_with_any_of_its_locks"),
        ..simulate("a-guard-of-all-looks-at-one-lock", "src/all.rs",
            &[("        self.holds.iter().all(Guard::is_held)\n", "        self.holds.first().is_none_or(Guard::is_held)\n")],
            "A guard says that it is held while its first lock is, though another one is lost.")
    },
    simulate("all-drops-a-lock", "src/all.rs",
        &[("filter(|(earlier, _)| earlier.name() == lock.name())", "filter(|(earlier, _)| earlier.name().len() == lock.name().len())")],
        "Of two locks whose names are equally long one is left out."),
    simulate("permits-are-stronger-than-writing", "src/all.rs",
        &[("            Self::Write => u32::MAX,\n", "            Self::Write => 0,\n")],
        "A lock that is named to write and for permits is acquired for permits."),
    simulate("all-in-an-order-of-each-client", "src/all.rs",
        &[("            one.name().cmp(other.name()).then(by_share)\n", "            let by_name = match self.handle.shared().id.to_string().as_bytes().first() {\n                Some(byte) if byte % 2 == 0 => other.name().cmp(one.name()),\n                _ => one.name().cmp(other.name()),\n            };\n            by_name.then(by_share)\n")],
        "Each client has an order of its own, as by a hash with a seed: calls for several locks wait for each other for ever."),
    simulate("half-of-the-max-hold-of-all", "src/all.rs",
        &[("hold.limit(now, max_hold));", "hold.limit(now, max_hold / 2));")],
        "max_hold ends a guard of several locks before its time."),
    // ---- deadlocks
    simulate("deadlock-looked-for-once", "src/engine/deadlock.rs",
        &[("    rounds.is_power_of_two() && rounds < LONGEST_PAUSE || rounds.is_multiple_of(LONGEST_PAUSE)\n}", "    rounds == 1\n}")],
        "The youngest owner looks before the others have noted their waits, and never again."),
    simulate("holds-that-nobody-has-are-edges", "src/state/waits.rs",
        &[("self.holds.contains(*holder) || of.is_none_or(|of| !self.told.contains(&of))", "self.holds.contains(*holder) || of.is_some()")],
        "A hold that its user has left, and that ends by itself, closes a circle."),
    simulate("youngest-by-name", "src/state/waits.rs",
        &[("        self.age() < other.age()\n", "        self.request < other.request\n")],
        "An owner that has waited for longer than another one is told of their circle."),
    simulate("youngest-by-the-second", "src/state/waits.rs",
        &[("        self.age() < other.age()\n", "        self.ticket / 1_000_000 <= other.ticket / 1_000_000\n")],
        "Two owners that began to wait in the same second are both told of their circle."),
    simulate("circle-without-the-youngest", "src/engine/deadlock.rs",
        &[("let blocked = circle.iter().filter_map(", "let blocked = circle.iter().skip(1).filter_map(")],
        "The error leaves out the wait of the owner that is told."),
    Mutant {
        check: Check::Testing("server::a_search_for_deadlocks_outlives_an_outage"),
        ..simulate("search-ends-with-an-error", "src/engine/deadlock.rs",
        &[("                Err(error) if is_transient(&error) => tracing::debug!(%error, \"no look for deadlocks\"),\n", "                Err(error) if is_transient(&error) => return tracing::debug!(%error, \"no look for deadlocks\"),\n")],
        "A look for deadlocks fails because the connection breaks, and it was the last one.")
    },
];
