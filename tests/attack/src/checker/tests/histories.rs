//! Histories that are as they should be.

use super::super::*;
use super::{bad, good, record};
use std::time::Instant;

#[test]
fn taking_turns() {
    good(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w1:1 => 2 5 99 5
         1 acquire r2:1 => 1 6 99 6 | queued r2:1
         2 acquire r2:1 => 1 6 99 6
         3 acquire w3:1 => 1 7 98 7 | queued w3:1
         4 acquire r4:1 => 1 8 98 8 | queued r4:1
         5 acquire r5:1 try => 0 0 98 8
         6 renew r2:1 100 r9:9 100 w1:1 100 => 97 5 -8 -1 5
         7 release w1:1 r9:9 w1:1 => 97 2 0 0 | released w1:1, granted r2:1 9
         8 release w3:1 => 90 1 | left w3:1, granted r4:1 10
         9 renew r2:1 100 r4:1 100 => 100 9 10 10
         10 release r2:1 r4:1 => -1 9 9 | released r2:1, released r4:1
         11 release r2:1 => -1 0
         finish",
    );
}

#[test]
fn owners_reenter_upgrade_and_downgrade() {
    good(
        "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
         0 acquire w2:1 => 1 6 100 6 | queued w2:1
         1 acquire r1:2:o => 2 5 99 6 | granted r1:2:o 5
         2 acquire w1:3:o => 2 7 98 7 | granted w1:3:o 7
         3 acquire w1:4:o => 2 7 97 7 | granted w1:4:o 7
         4 release w1:4:o => 96 2 | released w1:4:o
         5 downgrade w1:3:o r1:5:o 100 => 95 5 | granted r1:5:o 7, released w1:3:o
         5 downgrade w1:3:o r1:5:o 100 => 95 5
         6 release r1:1:o r1:2:o r1:5:o => 94 2 2 5 | released r1:1:o, released r1:2:o, released r1:5:o, granted w2:1 8
         7 acquire w2:2:2:1 try => 2 8 94 8 | granted w2:2:2:1 8
         8 release w2:1 w2:2:2:1 => -1 2 2 | released w2:1, released w2:2:2:1
         finish",
    );
    good(
        "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
         0 acquire r2:1:p => 2 5 100 5 | granted r2:1:p 5
         1 acquire w3:1 => 1 7 99 7 | queued w3:1
         1 acquire w1:2:o => 1 8 99 8 | queued w1:2:o
         1 acquire w1:3:o => -2 0 99 8
         1 acquire w2:2:p => -1 0 99 8
         2 acquire r2:3:p => 2 5 98 8 | granted r2:3:p 5
         3 release r2:1:p r2:3:p => 97 2 2 | released r2:1:p, released r2:3:p, granted w1:2:o 9
         4 downgrade w1:2:o r1:9:o 100 => 96 5 | granted r1:9:o 9, released w1:2:o
         5 downgrade w1:2:x r1:10:x 100 => 95 -1
         6 evict o => 90 2 | evicted r1:1:o, evicted r1:9:o, granted w3:1 10
         6 evict o => 90 0
         7 release w3:1 => -1 2 | released w3:1",
    );
}

#[test]
fn policies_and_old_tickets() {
    good(
        "0 acquire w1:1 policy=w => 2 5 -1 5 | granted w1:1 5
         1 acquire r2:1 policy=w => 1 6 99 6 | queued r2:1
         2 acquire w3:1 policy=w => 1 7 98 7 | queued w3:1
         3 acquire w4:1 => -3 119 97 7
         4 release w1:1 => 96 2 | released w1:1, granted w3:1 8
         5 release w3:1 => 96 2 | released w3:1, granted r2:1 9
         6 acquire r5:1 policy=w => 2 9 90 9 | granted r5:1 9",
    );
    good(
        "0 acquire r1:1 policy=r => 2 50 -1 50 | granted r1:1 50
         1 acquire w2:1 policy=r => 1 60 99 60 | queued w2:1
         2 acquire r3:1 policy=r => 2 50 98 60 | granted r3:1 50",
    );
    good(
        "0 acquire w1:1 => 2 50 -1 50 | granted w1:1 50
         1 acquire w2:1 => 1 60 99 60 | queued w2:1
         2 acquire w3:1 ticket=55 => 1 55 99 60 | queued w3:1
         3 release w1:1 => 99 2 | released w1:1, granted w3:1 61",
    );
    good(
        "0 acquire r1:1 => 2 50 -1 50 | granted r1:1 50
         1 acquire w2:1 => 1 60 99 60 | queued w2:1
         2 acquire r3:1 ticket=55 => 2 50 99 60 | granted r3:1 50",
    );
}

#[test]
fn more_than_one_call_can_do() {
    good(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire r2:1 => 1 6 99 6 | queued r2:1
         1 acquire r2:2 => 1 7 99 7 | queued r2:2
         2 release w1:1 => 0 2 | released w1:1, granted r2:1 8
         3 renew => 98 8 | granted r2:2 9",
    );
    good(
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         0 acquire r1:2 => 2 5 100 5 | granted r1:2 5
         50 acquire w2:1 => 1 7 50 7 | queued w2:1
         120 renew w2:1 100 => 0 5 -7 | expired r1:1
         120 renew => 30 8 | expired r1:2, granted w2:1 8",
    );
}

#[test]
fn expiry_and_renewal_after_the_deadline() {
    good(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         150 renew w1:1 100 => -1 5 5
         200 acquire w2:1 => 1 6 50 6 | queued w2:1
         200 acquire w3:1 lease=10 => 1 7 10 7 | queued w3:1
         260 renew w2:1 100 => 100 8 8 | expired w3:1, expired w1:1, granted w2:1 8",
    );
    bad(
        8,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         150 renew w1:1 100 => -1 5 -1",
    );
}

#[test]
fn a_clock_that_is_put_back_leaves_deadlines_that_a_renewal_pulls_in() {
    good(
        "5000 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1000 acquire w2:1 => 1 6 100 6 | queued w2:1
         1010 renew w2:1 100 => 100 5 -6
         1110 renew w2:1 100 => 100 7 7 | expired w1:1, granted w2:1 7",
    );
    bad(
        1,
        "5000 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1000 acquire w2:1 => 1 6 100 6 | queued w2:1
         1110 acquire w2:1 => 2 7 100 7 | expired w1:1, granted w2:1 7",
    );
}

#[test]
fn lost_and_damaged_state() {
    good(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         lost
         1 acquire w2:1 => 2 6 -1 6 | granted w2:1 6
         2 renew w1:1 100 => 90 6 -1
         3 release w2:1 => -1 2 | released w2:1
         finish",
    );
    bad(
        2,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         lost
         1 acquire w2:1 => 2 5 -1 5 | granted w2:1 5",
    );
    // The hash is gone: the next one enters, until somebody renews.
    good(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         0 acquire w3:1 => 1 6 100 6 | queued w3:1
         damaged
         1 acquire r2:1 => 2 7 -1 7 | granted r2:1 7
         2 acquire r2:2 => 1 8 99 8 | queued r2:2
         3 renew w1:1 100 => -1 5 -1 | reset -
         4 acquire w1:2 => 2 9 -1 9 | granted w1:2 9
         5 acquire w3:2 ticket=6 => 1 6 99 9 | queued w3:2",
    );
    bad(
        1,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         damaged
         3 renew w1:1 100 => -1 5 -1 | reset -
         4 acquire w1:2 => 2 9 -1 9 | granted w1:2 9
         5 acquire w3:2 => 2 10 99 10 | granted w3:2 10",
    );
    // Who was interrupted is told so, by a renewal and by a release.
    bad(
        8,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         damaged
         1 acquire w2:1 => 2 7 -1 7 | granted w2:1 7
         3 renew r1:1 100 => 90 5 5",
    );
    bad(
        8,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         damaged
         1 acquire w2:1 => 2 7 -1 7 | granted w2:1 7
         3 release r1:1 => -1 5",
    );
    // A hold whose lease is gone: that shows only when somebody asks.
    good(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         damaged
         101 acquire w2:1 => 2 9 -1 9 | reset -, granted w2:1 9",
    );
    // What is left of the former life is expired at some time.
    good(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         0 acquire w3:1 => 1 6 100 6 | queued w3:1
         damaged
         101 acquire w2:1 => 2 9 -1 9 | granted w2:1 9
         102 acquire w4:1 => 1 10 99 10 | expired w3:1, queued w4:1",
    );
    // A newcomer of the time in doubt is expired, so the lock was not free.
    good(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         damaged
         50 acquire w5:1 => 2 6 100 6 | granted w5:1 6
         60 acquire r2:1 => 1 7 90 7 | queued r2:1
         151 acquire r3:1 => 2 9 -1 9 | expired w5:1, granted r2:1 9, granted r3:1 9",
    );
    // Nothing is heard of the former life: after its leases all is certain again.
    bad(
        1,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         damaged
         101 acquire w1:2 => 2 9 -1 9 | granted w1:2 9
         105 acquire w3:2 => 2 10 99 10 | granted w3:2 10",
    );
}

#[test]
fn a_loss_at_an_idle_lock_leaves_it_judged() {
    let idle = "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 release w1:1 => -1 5 | released w1:1
         damaged
         2 acquire r2:1 => 2 6 -1 6 | granted r2:1 6";
    bad(
        3,
        &format!(
            "{idle}
             3 acquire w3:1 => 1 7 98 7 | queued w3:1
             4 acquire r4:1 => 2 8 97 8 | granted r4:1 8"
        ),
    );
    bad(2, &format!("{idle}\n3 renew r2:1 100 => 99 6 7"));
    bad(
        1,
        &format!("{idle}\n50 acquire w3:1 => 2 7 -1 7 | expired r2:1, granted w3:1 7"),
    );
    bad(6, &format!("{idle}\nfinish"));
}

/// Only the counter was lost, say: all of the former life goes on, and ends.
#[test]
fn a_loss_that_does_no_harm_leaves_the_lock_judged() {
    let lives_on = "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         damaged
         60 renew w1:1 100 => 100 5 5";
    let two_writers = |from: u64, owner: &str| {
        format!(
            "{lives_on}
             {from} acquire r1:2{owner} => 2 6 -1 6 | granted r1:2{owner} 6
             {} acquire w3:1 => 2 7 99 7 | granted w3:1 7",
            from + 1
        )
    };
    bad(1, &two_writers(161, ""));
    // A reader with a new token is alone, also if its owner is named.
    bad(1, &two_writers(161, ":o"));
    // The former one may be inside.
    good(&two_writers(160, ""));
    // A longer lease than any before.
    let longer = lives_on.replace("1 100 => 100", "1 900 => 900");
    good(&two_writers(960, "").replace(lives_on, &longer));
    bad(1, &two_writers(961, "").replace(lives_on, &longer));
    // An upgrade has a new token too, and its owner's read hold is from before.
    good(
        "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
         damaged
         101 acquire w1:2:o => 2 6 -1 6 | granted w1:2:o 6
         102 acquire r1:3:o => 2 6 99 6 | granted r1:3:o 6
         103 release r1:1:o => 99 5 | released r1:1:o",
    );
}

/// A history of 64 waiters in turns, for speed.
/// w1:1 holds and r2:1 waits, both until 100 ms; then nobody calls for 30 s.
fn after_the_keys_may_have_expired(rest: &str) -> String {
    format!(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         0 acquire r2:1 => 1 6 100 6 | queued r2:1
         {rest}"
    )
}

#[test]
fn keys_that_expire_take_the_dead_with_them() {
    for rest in [
        "30100 acquire w3:1 => 2 7 -1 7 | granted w3:1 7",
        "30100 acquire r2:1 ticket=6 => 2 7 -1 7 | granted r2:1 7",
        "30100 renew w1:1 100 r2:1 100 => -1 0 -1 -1
         30101 acquire w3:1 => 2 7 -1 7 | granted w3:1 7",
        "30100 release w1:1 => -1 0
         30101 acquire w3:1 => 2 7 -1 7 | granted w3:1 7",
        "30100 downgrade w1:1 r1:2:1:1 100 => -1 -1
         30101 acquire w3:1 => 2 7 -1 7 | granted w3:1 7",
        "30100 evict 1:1 => -1 0
         30101 acquire w3:1 => 2 7 -1 7 | granted w3:1 7",
        "30100 release w9:9 => -1 0
         finish",
    ] {
        good(&after_the_keys_may_have_expired(rest));
    }
    // Nobody waits, so this release does not tell.
    good(
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         30100 release w9:9 => -1 0
         30101 acquire w3:1 => 2 7 -1 7 | expired w1:1, granted w3:1 7",
    );
}

#[test]
fn keys_that_have_not_expired_yet_hold_the_dead_to_account() {
    let enters = "30101 acquire w3:1 => 2 7 -1 7 | granted w3:1 7";
    for (invariant, rest) in [
        (1, "30099 acquire w3:1 => 2 7 -1 7 | granted w3:1 7"),
        (8, "30099 renew w1:1 100 r2:1 100 => -1 5 -1 -1"),
        (2, "30100 acquire w3:1 => 2 6 -1 6 | granted w3:1 6"),
        // They are there: the script expires somebody, or knows somebody and stops at its limit.
        (1, "30100 acquire r3:1 => 2 7 -1 7 | expired r2:1, granted r3:1 7"),
        (1, &format!("30100 renew w1:1 100 => 0 5 5\n{enters}")),
        (1, &format!("30100 acquire w1:1 => 2 5 0 6\n{enters}")),
        (3, &format!("30100 acquire r2:1 => 1 6 0 6\n{enters}")),
    ] {
        bad(invariant, &after_the_keys_may_have_expired(rest));
    }
}

#[test]
fn it_keeps_up() {
    let mut records = Vec::new();
    let mut token = 1000;
    let line = |line: String| record(&line);
    records.push(line("0 acquire w0:0 => 2 1000 -1 1000 | granted w0:0 1000".to_owned()));
    for n in 1..64 {
        token += 1;
        records.push(line(format!("0 acquire w{n}:0 => 1 {token} 1 {token} | queued w{n}:0")));
    }
    let begun = records.len();
    let mut held = 1000;
    for turn in 0..2000 {
        let (here, next) = (turn % 64, (turn + 1) % 64);
        let (round, next_round) = (turn / 64, (turn + 1) / 64);
        token += 1;
        let (from, to) = (format!("w{here}:{round}"), format!("w{next}:{next_round}"));
        records.push(line(format!(
            "1 release {from} => 1 {held} | released {from}, granted {to} {token}"
        )));
        held = token;
        token += 1;
        let again = format!("w{here}:{}", round + 1);
        records.push(line(format!(
            "1 acquire {again} => 1 {token} 1 {token} | queued {again}"
        )));
    }
    let mut checker = Checker::new();
    for record in &records[..begun] {
        checker.check(record).expect("a good history");
    }
    let clock = Instant::now();
    for record in &records[begun..] {
        checker.check(record).expect("a good history");
    }
    let rate = (records.len() - begun) as f64 / clock.elapsed().as_secs_f64();
    println!("{rate:.0} records a second");
    // What a record costs grows with these.
    let lock = &checker.locks["a"];
    assert!(
        lock.requests.len() <= 65 && lock.owners.len() <= 65,
        "what is over is not forgotten"
    );
}
