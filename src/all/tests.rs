use super::*;

#[test]
fn one_limit_is_for_all_locks() {
    let waited = Duration::from_secs(60);
    let left = |limit| left_of(When::Within(Duration::from_secs(limit)), waited);
    assert!(matches!(left(100), When::Within(left) if left == Duration::from_secs(40)));
    for limit in [60, 59] {
        assert!(
            matches!(left(limit), When::Now),
            "a lock that is free is acquired all the same"
        );
    }
    assert!(matches!(left_of(When::InTurn, waited), When::InTurn));
}
