use super::*;

#[test]
fn an_error_shows_the_beginning_of_a_long_name() {
    assert_eq!(shown("ä"), "ä");
    assert!(shown(&"ä".repeat(1000)).ends_with("... (2000 bytes)"));
}

#[test]
fn an_error_has_the_whole_name_of_its_lock_and_tells_the_beginning() {
    let name = "ä".repeat(200);
    let error = Error::of_server(&name, timed_out());
    assert_eq!(error.lock(), Some(name.as_str()));
    assert!(error.to_string().contains("... (400 bytes)\""), "{error}");
    let of_all = Error::of_server(ALL_LOCKS, timed_out());
    assert_eq!(of_all.lock(), None);
    assert!(of_all.to_string().contains("about lock *:"), "{of_all}");
    let named = Error::of_server("*", timed_out());
    assert_eq!(named.lock(), Some("*"), "a lock may have that name");
    assert!(named.to_string().contains("about lock \"*\":"), "{named}");
}

fn said(words: &str) -> RedisError {
    let reply = redis::parse_redis_value(format!("-{words}\r\n").as_bytes());
    reply.and_then(redis::Value::extract_error).expect_err("an error reply")
}

#[test]
fn a_refusal_in_the_middle_of_a_script_may_leave_what_it_has_written() {
    let none = "NOPERM this user has no permissions to run the 'publish' command";
    for (words, nothing) in [
        ("LAYOUT another version of fairlock uses the lock: layout 9", true),
        (none, true),
        (&format!("{none} script: 9f, on @user_script:9."), false),
        (&format!("{none} script: fairlock_acquire, on @user_function:9."), false),
        ("WRONGTYPE Operation against a key", false),
    ] {
        assert_eq!(left_nothing(&said(words)), nothing, "{words}");
    }
}

#[test]
fn only_the_end_of_the_runtime_says_that_it_has_ended() {
    let of = |error| Error::of_server("a", error);
    assert!(matches!(of(runtime_ended()), Error::Unavailable { .. }));
    // As the redis crate reports a certificate of this machine that cannot be read.
    let tls = RedisError::from((ErrorKind::Client, "TLS error", "invalid certificate".to_owned()));
    assert!(matches!(of(tls), Error::Server { .. }));
}

#[test]
fn what_servers_say_during_a_switch_may_pass() {
    for words in [
        "READONLY You can't write against a read only replica.",
        "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -READONLY You can't write.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "LOADING Redis is loading the dataset in memory",
        "NOREPLICAS Not enough good replicas to write.",
        "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -NOREPLICAS Not enough good replicas.",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -MISCONF Redis is configured to save.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "ERR WAIT cannot be used with replica instances.",
        "MOVED 1 127.0.0.1:7001",
        "ASK 1 127.0.0.1:7001",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN Hash slot not served",
    ] {
        assert!(is_transient(&said(words)), "{words}");
    }
    for words in [
        "WRONGTYPE Operation against a key",
        "NOPERM this user has no permissions",
        "OOM command not allowed",
    ] {
        assert!(!is_transient(&said(words)), "{words}");
    }
}
