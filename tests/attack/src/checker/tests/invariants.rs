//! Each invariant, and histories that break it.

use super::{bad, good};

#[test]
fn invariant_1_exclusion() {
    bad(
        1,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         1 acquire w2:1 => 2 6 99 6 | granted w2:1 6",
    );
    bad(
        1,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire r2:1 => 2 6 99 6 | granted r2:1 6",
    );
    bad(
        1,
        "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
         0 acquire r2:1:p => 2 5 -1 5 | granted r2:1:p 5
         1 acquire w1:2:o => 2 7 99 7 | granted w1:2:o 7",
    );
    bad(
        1,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 2 6 99 6",
    );
    // A holder that is thrown out before its time.
    bad(
        1,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         50 acquire w2:1 => 2 6 99 6 | expired w1:1, granted w2:1 6",
    );
}

#[test]
fn invariant_2_tokens() {
    bad(
        2,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 release w1:1 => -1 2 | released w1:1
         2 acquire w2:1 => 2 5 -1 5 | granted w2:1 5",
    );
    bad(
        2,
        "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
         1 acquire w1:2:o => 2 5 99 5 | granted w1:2:o 5",
    );
    bad(
        2,
        "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
         1 acquire r1:2:o => 2 6 99 6 | granted r1:2:o 6",
    );
    // Below a ticket that was given out: its message would be taken for an old one.
    bad(
        2,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 8 99 8 | queued w2:1
         2 release w1:1 => 90 2 | released w1:1, granted w2:1 7",
    );
    bad(
        2,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 renew w1:1 100 => -1 5 6",
    );
    bad(
        2,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 acquire w1:1:o => 2 6 -1 6",
    );
    bad(
        2,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 acquire w2:1 => 1 6 99 5 | queued w2:1",
    );
    bad(
        2,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 downgrade w1:1:o r1:2:o 100 => 99 6 | granted r1:2:o 5, released w1:1:o",
    );
    // A phase of readers has one token for who enters at once.
    bad(
        2,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         1 acquire r2:1 => 2 6 99 6 | granted r2:1 6",
    );
    // Who waited was told more than that.
    bad(
        2,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire r2:1 => 1 6 99 6 | queued r2:1
         2 downgrade w1:1 r1:2:1:1 100 => 98 5 | granted r1:2:1:1 5, released w1:1, granted r2:1 5",
    );
    // A phase that ended has another token, and another first one.
    bad(
        2,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         1 release r1:1 => -1 5 | released r1:1
         2 acquire r2:1 => 2 5 -1 5 | granted r2:1 5",
    );
    bad(
        2,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         1 release r1:1 => -1 5 | released r1:1
         2 acquire r2:1 => 2 6 -1 6 | granted r2:1 6
         3 renew r2:1 100 => 99 5 6",
    );
}

#[test]
fn invariant_3_order() {
    bad(
        3,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 acquire r3:1 => 2 7 98 7 | granted r3:1 7",
    );
    bad(
        3,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         1 acquire w3:1 => 1 7 99 7 | queued w3:1
         2 release w1:1 => 98 2 | released w1:1, granted w3:1 8",
    );
    bad(
        3,
        "0 acquire w1:1 policy=w => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 policy=w => 1 6 99 6 | queued w2:1
         1 acquire r3:1 policy=w => 1 7 99 7 | queued r3:1
         2 release w1:1 => 98 2 | released w1:1, granted r3:1 8",
    );
    bad(
        3,
        "0 acquire r1:1 => 2 50 -1 50 | granted r1:1 50
         1 acquire w2:1 => 1 60 99 60 | queued w2:1
         2 acquire r3:1 ticket=65 => 2 66 98 66 | granted r3:1 66",
    );
    bad(
        3,
        "0 acquire r1:1 => 2 50 -1 50 | granted r1:1 50
         1 acquire w2:1 => 1 40 99 60 | queued w2:1",
    );
    bad(
        3,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 acquire w3:1 ticket=55 => 1 56 99 60 | queued w3:1",
    );
}

#[test]
fn invariant_4_nobody_is_left_who_could_enter() {
    bad(
        4,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 release w1:1 => 98 2 | released w1:1",
    );
    bad(
        4,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 acquire r3:1 => 1 7 98 7 | queued r3:1
         3 release w2:1 => 97 1 | left w2:1",
    );
    bad(
        4,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire r2:1 => 1 6 99 6 | queued r2:1
         2 acquire r3:1 => 1 7 98 7 | queued r3:1
         3 downgrade w1:1 r1:2:1:1 100 => 97 5 | granted r1:2:1:1 5, released w1:1, granted r2:1 8",
    );
    bad(4, "0 acquire w1:1 try => 0 0 -1 0");
}

#[test]
fn invariant_5_everybody_hears() {
    bad(
        5,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 release w1:1 => 0 2 | released w1:1
         finish",
    );
    // A waiter that renewed.
    bad(
        5,
        "0 acquire w1:1 lease=500 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 100 6 | queued w2:1
         90 renew w2:1 100 => 100 5 -6
         110 renew w1:1 500 => 400 5 5 | expired w2:1",
    );
    // A dead holder that nobody notices.
    bad(
        5,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 lease=500 => 1 6 99 6 | queued w2:1
         110 renew w2:1 500 => 300 5 -6",
    );
    // A grant to the dead.
    bad(
        5,
        "0 acquire w1:1 lease=500 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         200 release w1:1 => 90 2 | released w1:1, granted w2:1 7",
    );
    bad(
        5,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 0 0 99 5",
    );
    bad(
        5,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1:o => -2 0 99 5",
    );
    bad(
        5,
        "0 acquire w1:1 lease=500 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         200 release w1:1 => 0 2 | released w1:1, granted w2:1 7",
    );
    bad(
        5,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 acquire w2:1:p => 1 6 99 6 | queued w2:1:p
         1 acquire w2:2:p => 1 7 99 7 | queued w2:2:p",
    );
}

#[test]
fn invariant_6_every_request_is_counted() {
    bad(6, "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5\nfinish");
    bad(6, "0 renew => -1 0 | expired w1:1");
    bad(6, "0 renew => -1 0 | granted w1:1 7");
    bad(
        6,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 release w1:1 => 98 2 | released w1:1, granted w2:1 7, granted w3:1 8",
    );
    bad(
        6,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 renew w1:1 100 => -1 5 -1 | reset -",
    );
    bad(
        6,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 evict p => -1 1 | evicted w1:1:o",
    );
    bad(
        6,
        "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
         0 acquire r1:2:o => 2 5 100 5 | granted r1:2:o 5
         1 evict o => 99 1 | evicted r1:1:o",
    );
    bad(
        6,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 acquire w2:1 => 1 6 99 6 | queued w3:1",
    );
    bad(
        6,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 evict o => -1 2 | evicted w1:1:o",
    );
}

#[test]
fn invariant_7_sent_twice_is_sent_once() {
    bad(
        7,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         1 acquire r1:1 => 2 5 99 5 | granted r1:1 5",
    );
    bad(
        7,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w1:1 => 1 6 99 6 | queued w1:1",
    );
    bad(
        7,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 acquire w2:1 => 1 7 99 7",
    );
    bad(
        7,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 acquire w2:1 => -1 0 99 6",
    );
    bad(
        7,
        "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
         0 acquire r1:1 try => 0 0 -1 5",
    );
}

#[test]
fn invariant_8_the_unknown_changes_nothing() {
    bad(8, "0 release w1:1 => -1 2");
    bad(8, "0 release w1:1 => -1 0 | released w1:1");
    bad(8, "0 renew w1:1 100 => -1 0 0");
    bad(8, "0 downgrade w1:1 r1:2:1:1 100 => -1 7");
    bad(
        8,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 release w1:1 => -1 0",
    );
    bad(
        8,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 release w1:1 => -1 2",
    );
    bad(
        8,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 release w1:1 w1:1 => -1 2 2 | released w1:1",
    );
    bad(
        8,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 release w2:1 => -1 0 | released w1:1",
    );
    bad(
        8,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 renew w1:1 100 => -1 5 -1",
    );
    bad(
        8,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 renew w2:1 100 => 98 5 7",
    );
    bad(
        8,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 release w1:1:o => -1 2 | left w1:1:o",
    );
    bad(
        8,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1
         2 release w9:9 => 98 0 | left w2:1",
    );
    bad(
        8,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 acquire w1:2:o => 2 5 99 5 | granted w1:2:o 5
         2 downgrade w1:1:o r1:3:o 100 => 98 5 | granted r1:3:o 5, released w1:2:o",
    );
    bad(8, "0 downgrade w1:1:o r1:2:o 100 => -1 -1 | granted r1:2:o 5");
}

#[test]
fn invariant_9_upgrades_and_downgrades() {
    let readers = "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
         0 acquire r2:1:p => 2 5 100 5 | granted r2:1:p 5
         1 acquire w1:2:o => 1 8 99 8 | queued w1:2:o\n";
    for rest in [
        "2 acquire w2:2:p => 1 9 98 9 | queued w2:2:p",
        "2 acquire r3:1 => 2 9 98 9 | granted r3:1 9",
        "2 acquire w4:1 => 1 9 98 9 | queued w4:1
         3 release r1:1:o => 98 2 | released r1:1:o
         3 release r2:1:p => 98 2 | released r2:1:p, granted w4:1 10",
    ] {
        bad(9, &format!("{readers}{rest}"));
    }
    bad(
        9,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 acquire r2:1 => 1 6 99 6 | queued r2:1
         2 downgrade w1:1:o r1:2:o 100 => 98 7 | released w1:1:o, granted r1:2:o 7, granted r2:1 8",
    );
    bad(
        9,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         2 downgrade w1:1:o r1:2:o 100 => 98 5 | granted r1:2:o 5",
    );
    bad(
        9,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 acquire w2:1 => -1 0 99 5",
    );
    bad(
        9,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 downgrade w1:1:o r1:2:o 100 => 99 5",
    );
    bad(
        9,
        "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
         1 downgrade w1:1:o r1:2:p 100 => 99 6 | granted r1:2:p 6, released w1:1:o",
    );
}

#[test]
fn invariant_10_who_waits_only_renews() {
    bad(
        10,
        "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 try => 1 6 99 6 | queued w2:1",
    );
    let waits = "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 => 1 6 99 6 | queued w2:1\n";
    bad(10, &(waits.to_owned() + &"2 acquire w2:1 => 1 6 98 6\n".repeat(101)));
    let asks = "2 acquire r3:2:2:1 => 1 7 98 7 | queued r3:2:2:1";
    bad(10, &format!("{waits} {asks}\n 3 downgrade w2:1 r3:2:2:1 100 => 97 -1"));
    good(&format!("{waits} 2 downgrade w2:1 r2:2:2:1 100 => 98 -1"));
    bad(8, &format!("{waits} 2 downgrade w2:1 r2:2:2:1 100 => 98 6"));
}

#[test]
fn records_that_make_no_sense() {
    bad(0, "0 acquire w1:1 => 2 5 -1");
    bad(0, "0 release w1:1 => -1");
    bad(0, "0 renew w1:1 => -1 0");
    bad(0, "0 renew w1:1 soon => -1 0 0");
}

#[test]
fn invariant_1_permits() {
    // Three of two.
    bad(
        1,
        "0 acquire r1:1:*2 policy=n2 => 2 5 -1 5 | granted r1:1:*2 5
         1 acquire r2:1 policy=n2 => 2 5 99 5 | granted r2:1 5",
    );
    bad(
        1,
        "0 acquire r1:1 policy=n1 => 2 5 -1 5 | granted r1:1 5
         1 acquire r2:1 policy=n1 => 1 6 99 6 | queued r2:1
         2 acquire w3:1 policy=n1 => 1 7 99 7 | queued w3:1
         3 release w3:1 => 97 1 | left w3:1, granted r2:1 8",
    );
    // Further holds of an owner take nothing; a lock that nobody holds takes anybody; the limit grows.
    good(
        "0 acquire r1:1:*2 policy=n2 => 2 5 -1 5 | granted r1:1:*2 5
         1 acquire r1:2:1:1:*2 policy=n2 => 2 5 99 5 | granted r1:2:1:1:*2 5
         2 release r1:1:*2 => -1 5 | released r1:1:*2
         3 acquire r2:1 policy=n2 => 1 6 97 6 | queued r2:1
         4 acquire r3:1 policy=n4 => 2 7 97 7 | granted r2:1 7, granted r3:1 7
         5 release r1:2:1:1:*2 r2:1 r3:1 => -1 5 5 5 | released r1:2:1:1:*2, released r2:1, released r3:1
         6 acquire r4:1:*9 policy=n1 => 2 8 -1 8 | granted r4:1:*9 8",
    );
    // An acquire admits after an expiry, and once more after its limit.
    good(
        "0 acquire r1:1 policy=n3 => 2 5 -1 5 | granted r1:1 5
         1 acquire r2:1:*2 policy=n3 lease=9 => 2 5 99 5 | granted r2:1:*2 5
         2 acquire r3:1:*2 policy=n3 => 1 6 8 6 | queued r3:1:*2
         3 acquire r4:1 policy=n3 => 1 7 7 7 | queued r4:1
         10 acquire r5:1 policy=n5 => 2 9 90 9 | expired r2:1:*2, granted r3:1:*2 8, granted r4:1 9, granted r5:1 9",
    );
}

#[test]
fn invariant_3_and_4_permits() {
    // A small one passes the head, which needs more than is free.
    bad(
        3,
        "0 acquire r1:1 policy=n2 => 2 5 -1 5 | granted r1:1 5
         1 acquire r2:1:*2 policy=n2 => 1 6 99 6 | queued r2:1:*2
         2 acquire r3:1 policy=n2 => 2 5 98 6 | granted r3:1 5",
    );
    // The limit grew, and the head was left.
    bad(
        4,
        "0 acquire r1:1 policy=n1 => 2 5 -1 5 | granted r1:1 5
         1 acquire r2:1 policy=n1 => 1 6 99 6 | queued r2:1
         2 acquire r3:1 policy=n2 => 1 7 98 7 | queued r3:1",
    );
    // It fell: the head waits rightly.
    good(
        "0 acquire r1:1 policy=n2 => 2 5 -1 5 | granted r1:1 5
         1 acquire r2:1 policy=n1 => 1 6 99 6 | queued r2:1
         2 acquire r3:1 policy=n1 => 1 7 98 7 | queued r3:1",
    );
}

#[test]
fn invariant_8_cut_leases() {
    let waits = "0 acquire w1:1 lease=9000 => 2 5 -1 5 | granted w1:1 5
         1 acquire w2:1 lease=9000 => 1 6 8999 6 | queued w2:1
         2 acquire w3:1 lease=9000 => 1 7 8998 7 | queued w3:1\n";
    good(&format!(
        "{waits} 3 release w1:1 => 1000 5 | released w1:1, granted w2:1 8, cut w2:1, cut w3:1
         1003 renew => 0 8 | expired w2:1, expired w3:1"
    ));
    // A lease that was not cut ends as late as ever.
    bad(
        1,
        &format!(
            "{waits} 3 release w1:1 => 8998 5 | released w1:1, granted w2:1 8
             1003 renew => 0 8 | expired w2:1"
        ),
    );
    // Who holds may know it.
    bad(8, &format!("{waits} 3 renew w3:1 9000 => 9000 5 -7 | cut w1:1"));
    // The reply of this very call proves the whole lease.
    bad(
        8,
        &format!("{waits} 9001 renew w2:1 9000 => 8997 8 8 | expired w1:1, granted w2:1 8, cut w2:1"),
    );
}
