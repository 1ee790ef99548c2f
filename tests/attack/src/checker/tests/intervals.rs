//! Users' intervals, good and bad.

use super::super::*;
use super::record;

fn interval(owner: &str, mode: Mode, token: u64, from_us: u64, until_us: u64) -> Interval {
    Interval {
        lock: "a".to_owned(),
        owner: owner.to_owned(),
        mode,
        token,
        from_us,
        until_us,
    }
}

#[test]
fn users_intervals() {
    use Mode::{Read, Write};
    let all = [
        interval("o", Write, 1, 0, 10),
        interval("o", Read, 1, 5, 15),
        interval("o", Write, 1, 7, 8),
        interval("p", Read, 3, 15, 30),
        interval("q", Read, 2, 16, 20),
        interval("p", Write, 4, 22, 29),
        interval("r", Write, 5, 30, 40),
        interval("s", Read, 9, 40, 40),
    ];
    assert_eq!(check_intervals(&all), Ok(()));
    for (one, invariant) in [
        (interval("x", Write, 2, 9, 12), 1),
        (interval("x", Read, 2, 9, 12), 1),
        (interval("x", Write, 2, 14, 15), 1),
        (interval("x", Write, 6, 39, 50), 1),
        (interval("x", Write, 3, 29, 30), 1),
        (interval("x", Write, 4, 45, 50), 2),
        (interval("x", Read, 4, 45, 50), 2),
        (interval("x", Write, 5, 45, 50), 2),
        // After a downgrade readers share the writer's token.
        (interval("x", Read, 5, 45, 50), 0),
        (interval("x", Write, 6, 42, 43), 0),
        (interval("r", Write, 5, 32, 50), 0),
    ] {
        let mut all = all.to_vec();
        all.push(one.clone());
        let found = check_intervals(&all).err().map_or(0, |violation| violation.invariant);
        assert_eq!(found, invariant, "{one:?}");
        all.last_mut().expect("one").lock = "b".to_owned();
        assert_eq!(check_intervals(&all), Ok(()), "of another lock");
    }
}

#[test]
fn users_stay_within_what_the_server_gave() {
    use Mode::{Read, Write};
    let mut checker = Checker::with_holds();
    for line in [
        "10 acquire w1:1 => 2 5 -1 5 | granted w1:1 5",
        "20 acquire r2:1 => 1 6 90 6 | queued r2:1",
        "30 release w1:1 => 90 5 | released w1:1, granted r2:1 7",
        "40 release r2:1 => -1 7 | released r2:1",
    ] {
        checker.check(&record(line)).expect("a good history");
    }
    let writer = |from, until| interval("1:1", Write, 5, from, until);
    assert_eq!(
        checker.check_users(&[writer(10_000, 30_000), writer(30_000, 30_000)]),
        Ok(())
    );
    let reader = interval("2:1", Read, 7, 30_000, 40_000);
    assert_eq!(checker.check_users(std::slice::from_ref(&reader)), Ok(()));
    for wrong in [
        writer(9_999, 30_000),
        writer(10_000, 30_001),
        interval("1:1", Read, 5, 10_000, 30_000),
        interval("1:2", Write, 5, 10_000, 30_000),
        interval("1:1", Write, 7, 10_000, 30_000),
    ] {
        let found = checker.check_users(std::slice::from_ref(&wrong)).expect_err("outside");
        assert_eq!(found.invariant, 1, "{wrong:?}");
    }
}
