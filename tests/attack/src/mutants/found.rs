//! The bugs that this crate had.

pub struct Bug {
    pub what: &'static str,
    pub how: &'static str,
    /// Tests of `tests/it` unless they say otherwise.
    pub held_by: &'static [&'static str],
}

const fn bug(what: &'static str, how: &'static str, held_by: &'static [&'static str]) -> Bug {
    Bug { what, how, held_by }
}

#[rustfmt::skip]
pub const ALL: &[Bug] = &[
    bug("A renewal of a hold that failed was tried again only at the next third of the lease.",
        "review", &["review::a_hold_survives_an_outage_that_ends_before_its_lease"]),
    bug("Renewals piled up while the server was away: 17,000 calls a second with nobody waiting.",
        "review", &["review::renewals_do_not_pile_up_during_an_outage"]),
    bug("A burst of 20,000 requests looked like a dead server: the connection was given up.",
        "review", &["review::a_burst_of_requests_does_not_cost_a_healthy_connection"]),
    bug("Each request of a named owner went through all requests of the lock.",
        "ten thousand owners", &["scale::ten_thousand_owners_that_wait_for_one_lock_queue_and_leave"]),
    bug("A shutdown over a broken connection released nothing.",
        "review", &["review::shutdown_releases_over_a_new_connection_when_the_old_one_broke"]),
    bug("An owner waited a time limit for its own release that had been answered.",
        "review", &["review::an_owner_asks_again_as_soon_as_its_release_is_answered"]),
    bug("An owner could not come back while a guard that it had lost was still somewhere.",
        "review", &["evict::an_evicted_owner_may_come_back_while_its_old_guard_still_exists"]),
    bug("A `max_hold` below a third of the lease ended late for others.",
        "review", &["rw_lock::a_hold_that_reached_a_max_hold_far_below_its_lease_lets_in_who_waits"]),
    bug("Waiters of one client whom the server had forgotten asked again in the order of a hash table.",
        "review", &["faults::waiters_of_one_client_enter_in_order_when_the_server_lost_its_data"]),
    bug("A queue key of another type left the state half written.",
        "a test of hostile keys", &["scripts::a_key_of_another_type_is_an_error_and_nothing_is_half_written"]),
    bug("If the leases alone were lost and only tries came, the lock stayed busy.",
        "review of the scripts", &["scripts::when_the_leases_are_lost_and_nobody_waits_a_try_enters"]),
    bug("The owner of an upgraded request that named none was wrong.",
        "review", &["upgrade::a_request_without_an_owner_upgrades_and_downgrades_as_one_owner"]),
    bug("A downgrade forgot `max_hold`.",
        "review", &["upgrade::a_downgrade_does_not_end_the_limit_of_max_hold"]),
    bug("Events right after a gap were lost.",
        "a test of events", &["events::what_follows_a_gap_is_complete"]),
    bug("A limit shorter than one round trip was told as \"no\" although nobody had answered.",
        "review", &["cancellation::a_server_out_of_reach_for_a_short_limit_is_an_error_too"]),
    bug("The demo's judge of order saw nothing any more after an argument was added to the scripts.",
        "review", &["examples/demo/monitor.rs acquire_calls_take_places_in_the_order_of_their_lines"]),
    bug("A connection was taken for dead because this process itself was starved of CPU.",
        "tests on a busy machine", &[
            "src/link.rs time_in_which_the_process_did_not_run_is_no_silence",
            "src/link.rs replies_to_others_are_no_silence",
        ]),
    bug("A named owner that held could wait in the same mode as well; ending its waiting request took the hold's count away and left a writer beside new readers.",
        "model-check", &["scripts::a_request_that_its_owner_overtook_leaves_the_queue_and_not_the_lock"]),
    bug("Leases made anew in the call that emptied them (downgrade, a newcomer behind the dead) had no expiry.",
        "model-check", &[
            "scripts::a_downgrade_of_the_only_request_left_leaves_leases_that_expire",
            "scripts::a_newcomer_behind_nobody_but_the_dead_leaves_leases_that_expire",
        ]),
    bug("A renewal of nothing known after the loss of the hash answered with an error.",
        "model-check", &["scripts::when_the_hash_is_lost_somebody_who_only_looks_starts_over_without_an_error"]),
    bug("An orphan of a downgraded writer that left the queue made the same call forget its owner's read hold.",
        "model-check", &["scripts::an_orphan_of_a_downgraded_writer_ends_without_its_reader"]),
    bug("After an outage calls went out in random order: who waits for a connection was woken by a watch channel.",
        "simulation: a seed gave two histories", &["tests/attack/src/simulation/mod.rs a_seed_gives_one_history"]),
    bug("An orphan that expired in a call of its own owner made that call forget the owner's token: it was granted with token 0.",
        "explore, at depth 8", &["scripts::an_orphan_that_ends_in_the_call_of_its_owner_leaves_it_its_token"]),
    bug("A request that waited for its owner's former one was sent after a shutdown had released it: held by nobody for a lease.",
        "a loom model of the shutdown", &["rw_lock::an_owner_that_waits_for_its_former_request_does_not_enter_after_a_shutdown"]),
    bug("\"Busy\" to a request that may wait was a panic, and \"queued\" to a try made it wait without a limit.",
        "fuzzing", &["tests/attack/src/parse.rs a_reply_is_understood_as_the_design_says_or_refused"]),
    bug("Tokens and tickets of 0 and below became large ones, and so guards.",
        "fuzzing", &["tests/attack/src/parse.rs a_reply_is_understood_as_the_design_says_or_refused"]),
    bug("A message that named another client's request, or one under another key, had it released; one with the number of a live waiter unregistered that one.",
        "fuzzing", &[
            "tests/attack/src/wild.rs a_client_passes_on_its_own_forgotten_grants_and_no_others",
            "tests/attack/src/wild.rs a_message_about_another_name_with_the_same_number_leaves_a_waiter_alone",
        ]),
    bug("A server that always said that there was more to do kept `release` busy for ever.",
        "a server of nonsense", &["tests/attack/src/wild.rs a_server_that_never_has_done_with_it_does_not_keep_a_release_waiting"]),
    bug("A holder that was told that it waits, after a server went back to an earlier state, went on believing that it held.",
        "review of a simulated rollback", &["src/claim.rs a_hold_that_waits_again_after_the_server_went_back_is_lost"]),
];
