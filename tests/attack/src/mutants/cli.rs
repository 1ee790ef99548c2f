//! Bugs in the command.

use super::{Check, Mutant};

#[rustfmt::skip]
pub const ALL: &[Mutant] = &[
    Mutant {
        name: "each-request-is-a-vote", file: "cli/src/quorum/merge.rs",
        edits: &[("let Some(known) = once.iter_mut().find(|known| is_same(known, holder)) else {", "let Some(known) = once.iter_mut().find(|_| false) else {")],
        seen: "found here, by a reader from outside",
        story: "An owner that reentered at one server of three is shown as a holder, by two votes.",
        check: Check::Cli("quorum::an_owner_that_reentered_has_one_vote_of_each_server"),
    },
    Mutant {
        name: "a-signal-ends-a-loss-well", file: "cli/src/run.rs",
        edits: &[("return if ended.lost { Err(after_a_loss(ended)) } else { Ok(ended.status) };", "return Ok(ended.status);")],
        seen: "found here, by a reader from outside",
        story: "The command knew that its lock was lost, and a signal that ends the wait for the release makes the status its own.",
        check: Check::Cli("run::signals::a_known_loss_is_told_also_where_no_server_confirms_the_release_of_the_rest"),
    },
    Mutant {
        name: "an-outage-is-a-busy-lock", file: "cli/src/run.rs",
        edits: &[("                _ => Status::UNAVAILABLE,\n", "                _ => Status::BUSY,\n")],
        seen: "found here, by a reader from outside",
        story: "A server that is away while `run --and` waits for the rest of its locks is told as a busy lock.",
        check: Check::Cli("wait::an_outage_while_it_waits_with_a_part_of_its_locks_is_no_busy_lock"),
    },
    Mutant {
        name: "a-deadlock-is-an-outage", file: "cli/src/outcome.rs",
        edits: &[("Error::QueueFull { .. } | Error::Deadlock { .. } => Status::BUSY,", "Error::QueueFull { .. } => Status::BUSY,")],
        seen: "found here, by a reader from outside",
        story: "Who is told of a deadlock ends as if the server were away.",
        check: Check::Cli("wait::who_is_told_of_a_deadlock_was_busy"),
    },
    Mutant {
        name: "an-inner-run-waits-for-its-outer-one", file: "cli/src/run.rs",
        edits: &[("let by = client.as_deref().map_or(By::Owner(all.owner()), By::Client);", "let by = By::Owner(all.owner());\n        let _ = client;")],
        seen: "found here, by a reader from outside",
        story: "A run inside of `run --semaphore --and` does not know that the permits are its outer one's, and waits for ever.",
        check: Check::Cli("wait::a_run_inside_another_one_does_not_wait_for_itself"),
    },
    Mutant {
        name: "a-stuck-output-hides-signals", file: "cli/src/outcome.rs",
        edits: &[("said = tokio::task::spawn_blocking(move || say(&text)) =>", "said = async { Ok::<_, tokio::task::JoinError>(say(&text)) } =>")],
        seen: "found here, by a reader from outside",
        story: "Nobody reads what `fairlock watch` prints, and only KILL ends it.",
        check: Check::Cli("watch::a_signal_ends_it_also_where_nobody_reads_what_it_prints"),
    },
    Mutant {
        name: "a-candidate-ends-in-an-outage", file: "cli/src/elect.rs",
        edits: &[("            answered.set(true);\n", "")],
        seen: "found here, by a reader from outside",
        story: "A candidate that never led is evicted, campaigns again, and ends because the server is away for a lease.",
        check: Check::Cli("elect::a_candidate_that_never_led_outlasts_an_outage_too"),
    },
    Mutant {
        name: "kill-zero", file: "cli/src/blockers.rs",
        edits: &[("is_ok_and(|process| process > 0)", "is_ok()")],
        seen: "found here, by a reader from outside",
        story: "A forged introduction names process 0, and the operator ends the own process group.",
        check: Check::Cli("blockers::what_it_prints_to_be_typed_has_no_words_of_others"),
    },
    Mutant {
        name: "a-word-that-zsh-expands", file: "cli/src/text.rs",
        edits: &[(" && !text.starts_with('=')", "")],
        seen: "found here, by a reader from outside",
        story: "A lock is named =ls, and zsh puts the path of ls in its place.",
        check: Check::Cli("blockers::what_it_prints_to_be_typed_has_no_words_of_others"),
    },
    Mutant {
        name: "trees-without-bound", file: "cli/src/serve/blame.rs",
        edits: &[("const BRANCHES: usize = 1000;", "const BRANCHES: usize = usize::MAX;")],
        seen: "found here, by a reader from outside",
        story: "Two clients wait for thousands of locks of each other, and the page's document takes all memory.",
        check: Check::Cli("serve::locks::trees_of_many_locks_are_bounded"),
    },
    Mutant {
        name: "a-name-forges-a-token", file: "cli/src/run.rs",
        edits: &[("name.contains('\\n')", "name.contains('\\0')")],
        seen: "found here, by a reader from outside",
        story: "A lock's name has a line feed, and what follows it looks like the token of another lock.",
        check: Check::Cli("refusal::a_name_that_would_end_a_line_of_tokens_is_refused"),
    },
    Mutant {
        name: "kill-minus-one", file: "cli/src/blockers.rs",
        edits: &[("i32::try_from(*process).is_ok_and(|process| process > 0)", "*process > 0")],
        seen: "found here, by a reader from outside",
        story: "A forged introduction names process 4294967295, which some programs take for all processes.",
        check: Check::Cli("blockers::what_it_prints_to_be_typed_has_no_words_of_others"),
    },
    Mutant {
        name: "selection-stays-on-the-first-alike", file: "cli/src/top/screen.rs",
        edits: &[("lines.map(|(line, _)| line).take(before + 1).last()", "lines.map(|(line, _)| line).take(before.min(0) + 1).last()")],
        seen: "found here, by a reader from outside",
        story: "An owner holds twice, and the line below its first hold cannot be selected.",
        check: Check::Cli("top::each_request_can_be_selected_also_where_an_owner_has_several"),
    },
    Mutant {
        name: "top-without-votes", file: "cli/src/top/mod.rs",
        edits: &[("show::document(lock, &[], false)", "json::status(&lock.name, &lock.status)")],
        seen: "found here, by a reader from outside",
        story: "A program reads top of a quorum and cannot see that a hold is at two of three servers.",
        check: Check::Cli("quorum::an_owner_that_reentered_has_one_vote_of_each_server"),
    },
];
