//! Hostile input and unwilling servers: everything works completely or is refused by an error that says what to do.

use crate::server::{Server, eventually, free_port, in_time, soon};
use fairlock::{Client, Error, Owner, Policy, RwLock};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const NS: Duration = Duration::from_nanos(1);

async fn client(server: &Server) -> Client {
    Client::connect(server.url()).await.expect("the server is up")
}

async fn run(server: &Server, command: &[&str]) -> redis::Value {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..])
        .query_async(&mut server.redis().await)
        .await
        .expect("a command of the test's own")
}

/// An error as its user sees it: it names the lock, and says what to do.
fn assert_helpful(error: &Error, lock: &str, remedy: &str) {
    let text = error.to_string();
    assert!(text.contains(lock), "no {lock:?} in: {text}");
    assert!(text.contains(remedy), "no {remedy:?} in: {text}");
}

// ---- names

/// Acquired, contended, handed over by one client to another, released: nothing stays.
async fn assert_works(here: &RwLock, there: &RwLock, server: &Server) {
    let guard = soon("acquire", here.write().acquire_fair()).await.unwrap();
    assert!(there.read().try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(there.write().acquire_fair());
    let contended = async || server.keys().await.len() == 3;
    eventually("the three keys of a lock that is waited for", contended).await;
    guard.release().await.unwrap();
    let next = soon("the hand-over", waiter).await.unwrap().unwrap();
    assert!(next.is_held());
    next.release().await.unwrap();
    assert!(here.write().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn any_name_of_1_to_1024_bytes_works_completely_and_lies_in_one_slot() {
    let names = [
        " ",
        "{",
        "}",
        "{}",
        "}{",
        "{a}b",
        "a}b{",
        "}:queue",
        "\0",
        "a\0b",
        "line\nline",
        "\r\n",
        "\"",
        "'",
        "\\",
        "%",
        "%7D",
        "%s",
        "*",
        "?[a]",
        "ümlaut",
        "鍵",
        "🔒",
        "\u{202e}",
        "a b",
        "fairlock:{a}",
        "../..",
        "\u{fffd}",
        "1",
        "-1",
        "nil",
        "$(x)",
    ];
    let (server, cluster) = tokio::join!(Server::start(), Server::start_with(&["--cluster-enabled", "yes"]));
    let (here, there) = (client(&server).await, client(&server).await);
    let kib = "k".repeat(1024);
    for name in names.into_iter().chain([kib.as_str()]) {
        let (here, there) = (here.rw_lock(name), there.rw_lock(name));
        assert_eq!(here.name(), name);
        let guard = here.read().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(there.write().acquire_fair());
        eventually("three keys", async || server.keys().await.len() == 3).await;
        let mut slots = BTreeSet::new();
        for key in server.keys().await {
            slots.insert(format!("{:?}", run(&cluster, &["CLUSTER", "KEYSLOT", &key]).await));
        }
        assert_eq!(slots.len(), 1, "{name:?}");
        drop(guard);
        soon("the hand-over", waiter)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_works(&here, &there, &server).await;
        run(&server, &["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn an_empty_name_and_one_of_more_than_1024_bytes_are_refused_before_anything_is_sent() {
    let server = Server::start().await;
    let client = client(&server).await;
    for (name, what) in [
        (String::new(), "at least one character"),
        ("k".repeat(1025), "use a digest"),
        ("ä".repeat(513), "use a digest"),
        ("k".repeat(1 << 20), "use a digest"),
    ] {
        let lock = client.rw_lock(name.as_str());
        let results = [
            lock.write().acquire_fair().await.map(|_| ()),
            lock.read().try_acquire().await.map(|_| ()),
            lock.read().try_acquire_for(Duration::from_secs(1)).await.map(|_| ()),
        ];
        for result in results {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::InvalidName { .. }), "{error}");
            assert_helpful(&error, name.get(..40.min(name.len())).unwrap_or_default(), what);
            assert!(error.to_string().len() < 400, "an error is not as long as the name");
        }
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn locks_whose_names_look_alike_are_different_locks() {
    let server = Server::start().await;
    let client = client(&server).await;
    let mut held = Vec::new();
    for name in [
        "a", "A", "a ", " a", "{a}", "a}", "a%7D", "a:queue", "a}:queue", "a\0", "ä", "a\u{308}",
    ] {
        held.push(
            client
                .rw_lock(name)
                .write()
                .try_acquire()
                .await
                .unwrap()
                .unwrap_or_else(|| panic!("{name:?}")),
        );
    }
}

// ---- durations

#[tokio::test]
async fn a_lease_outside_of_100_ms_to_a_year_is_refused_at_the_client_and_at_the_request() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("the lock");
    for lease in [
        Duration::ZERO,
        NS,
        Duration::from_millis(99),
        Duration::from_millis(100) - NS,
        YEAR + NS,
        Duration::MAX,
    ] {
        let connected = Client::builder().lease(lease).connect(server.url()).await;
        let error = connected.err().unwrap_or_else(|| panic!("{lease:?} at the client"));
        assert!(
            matches!(error, Error::InvalidDuration { given, .. } if given == lease),
            "{error}"
        );
        assert_helpful(&error, "lease", "between 100ms and 31536000s");
        let error = lock.write().lease(lease).acquire_fair().await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidDuration { given, .. } if given == lease),
            "{error}"
        );
        assert_helpful(&error, "the lock", "between 100ms and 31536000s");
        assert!(matches!(
            lock.read().lease(lease).try_acquire().await,
            Err(Error::InvalidDuration { .. })
        ));
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn the_shortest_and_the_longest_lease_work() {
    in_time(async || {
        let server = Server::start().await;
        for lease in [
            Duration::from_millis(100),
            Duration::from_millis(100) + NS,
            YEAR - NS,
            YEAR,
        ] {
            let client = Client::builder().lease(lease).connect(server.url()).await.unwrap();
            let lock = client.rw_lock("a");
            let guard = lock.write().acquire_fair().await.unwrap();
            assert!(lock.read().lease(lease).try_acquire().await.unwrap().is_none());
            // With 100 ms a stalled machine may lose it; that is an answer too.
            assert!(
                matches!(guard.release().await, Ok(()) | Err(Error::Lost { .. })),
                "{lease:?}"
            );
            drop(
                soon("the next", lock.write().lease(lease).acquire_fair())
                    .await
                    .unwrap(),
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_max_hold_below_1_ms_is_refused_and_any_other_ends_the_hold_in_time() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("the lock");
    for max_hold in [Duration::ZERO, NS, Duration::from_millis(1) - NS] {
        let error = lock.write().max_hold(max_hold).acquire_fair().await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidDuration { what: "max_hold", .. }),
            "{error}"
        );
        assert_helpful(&error, "the lock", "at least 1ms");
    }
    for max_hold in [
        Duration::from_millis(1),
        Duration::from_millis(99),
        Duration::from_millis(400),
    ] {
        let guard = lock.write().max_hold(max_hold).acquire_fair().await.unwrap();
        soon("its end", guard.lost()).await;
        assert!(!guard.is_held());
        // Others enter although the guard is still there.
        let next = soon("the next", lock.write().acquire_fair()).await.unwrap();
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
        next.release().await.unwrap();
    }
    for max_hold in [YEAR, YEAR + NS, Duration::MAX] {
        let guard = lock.write().max_hold(max_hold).acquire_fair().await.unwrap();
        assert!(guard.is_held(), "{max_hold:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_try_takes_any_time_limit() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    for limit in [
        Duration::ZERO,
        Duration::from_millis(500),
        YEAR,
        YEAR + NS,
        Duration::MAX,
    ] {
        let guard = soon("a free lock", lock.write().try_acquire_for(limit)).await.unwrap();
        guard.unwrap_or_else(|| panic!("{limit:?}")).release().await.unwrap();
    }
    let held = lock.write().acquire_fair().await.unwrap();
    for limit in [Duration::ZERO, NS, Duration::from_millis(1), Duration::from_millis(99)] {
        let none = soon("the end of the time", lock.write().try_acquire_for(limit)).await;
        // Within a nanosecond the server may not even answer: that is an error and not a "no".
        assert!(
            matches!(none, Ok(None) | Err(Error::Unavailable { .. })),
            "{limit:?}: {none:?}"
        );
    }
    let waiter = tokio::spawn(lock.write().try_acquire_for(Duration::MAX));
    server.until_queued("a", 1).await;
    held.release().await.unwrap();
    assert!(soon("without limit", waiter).await.unwrap().unwrap().is_some());
    eventually("nobody waits", async || server.queued("a").await == 0).await;
}

// ---- settings

#[tokio::test]
async fn prefixes_and_labels_are_taken_as_they_are_or_refused() {
    let server = Server::start().await;
    let kib = "p".repeat(1 << 20);
    for prefix in ["", "a{b", "a}b", "{", &"p".repeat(129), &kib] {
        let error = Client::builder()
            .prefix(prefix)
            .connect(server.url())
            .await
            .unwrap_err();
        assert!(matches!(error, Error::InvalidPrefix { .. }), "{error}");
        assert_helpful(&error, "prefix", "1 to 128 bytes and no braces");
        assert!(error.to_string().len() < 400);
    }
    for label in ["", "a b", "a\nb", "a\0", "ä", &"l".repeat(129), &kib] {
        let error = Client::builder().label(label).connect(server.url()).await.unwrap_err();
        assert!(matches!(error, Error::InvalidLabel { .. }), "{error}");
        assert_helpful(&error, "label", "printable ASCII");
        assert!(error.to_string().len() < 400);
    }
    let client = Client::builder()
        .label("billing-7f9c")
        .prefix("my app\n%")
        .connect(server.url())
        .await
        .unwrap();
    let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
    assert_eq!(server.keys().await, ["my app\n%:{a}"]);
    let list = format!("{:?}", run(&server, &["CLIENT", "LIST"]).await);
    assert_eq!(list.matches("name=billing-7f9c").count(), 2);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn clients_with_different_prefixes_have_different_locks() {
    let server = Server::start().await;
    let other = Client::builder().prefix("other").connect(server.url()).await.unwrap();
    let _here = client(&server).await.rw_lock("a").write().acquire_fair().await.unwrap();
    assert!(other.rw_lock("a").write().try_acquire().await.unwrap().is_some());
}

// ---- connecting

/// Fails to connect: says why and what to do, and never the password.
async fn refused(url: &str, remedy: &str) -> Error {
    let error = soon("an answer", Client::connect(url)).await.expect_err(url);
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains(remedy), "no {remedy:?} in: {error}");
    for shown in [error.to_string(), format!("{error:?}"), format!("{error:#?}")] {
        assert!(!shown.contains("s3cret"), "the password is shown: {shown}");
    }
    error
}

#[tokio::test]
async fn a_url_that_cannot_be_is_refused() {
    for url in [
        "",
        "redis",
        "http://:s3cret@127.0.0.1/",
        "redis://:s3cret@127.0.0.1:port",
        "redis://:s3cret@127.0.0.1:99999",
    ] {
        refused(url, "check the URL").await;
    }
    for url in [
        "redis://:s3cret@127.0.0.1/three",
        "redis://:s3cret@",
        "redis://u:s3cret@:1",
    ] {
        refused(url, "check").await;
    }
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_that_names_it() {
    let port = free_port();
    let error = refused(&format!("redis://:s3cret@127.0.0.1:{port}"), "up and reachable").await;
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let error = refused(&format!("redis://:s3cret@127.0.0.1:{port}"), "up and reachable").await;
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");

    let error = refused("unix:///nowhere/socket?pass=s3cret", "up and reachable").await;
    assert!(error.to_string().contains("/nowhere/socket"), "{error}");
}

#[tokio::test]
async fn a_login_that_is_refused_is_told_apart() {
    let server = Server::start_with(&["--requirepass", "right"]).await;
    let port = server.port();
    for login in ["", ":s3cret@", "nobody:s3cret@", "default:s3cret@"] {
        refused(&format!("redis://{login}127.0.0.1:{port}"), "check user and password").await;
    }
    let client = Client::connect(format!("redis://:right@127.0.0.1:{port}"))
        .await
        .unwrap();
    client
        .rw_lock("a")
        .write()
        .acquire_fair()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Two such clients see the same lock.
async fn assert_connects(server: &Server, url: &str) {
    let (here, there) = tokio::join!(Client::connect(url), Client::connect(url));
    let (here, there) = (here.unwrap().rw_lock("a"), there.unwrap().rw_lock("a"));
    let guard = here.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(there.write().acquire_fair());
    eventually("a queue", async || run_all(server).await == 3 + 2).await;
    guard.release().await.unwrap();
    soon("the hand-over", waiter)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Keys in all databases.
async fn run_all(server: &Server) -> usize {
    let text = format!("{:?}", run(server, &["INFO", "keyspace"]).await);
    text.split("keys=")
        .skip(1)
        .map(|rest| rest.split(',').next().unwrap().parse::<usize>().unwrap())
        .sum()
}

#[tokio::test]
async fn users_databases_and_sockets_in_the_url_work() {
    let server = Server::start().await;
    run(
        &server,
        &[
            "ACL",
            "SETUSER",
            "app",
            "on",
            ">p%w@:/",
            "~fairlock:*",
            "resetchannels",
            "&fairlock:*",
            "+@all",
        ],
    )
    .await;
    let (port, socket) = (server.port(), server.socket());
    let socket = socket.display();
    for url in [
        format!("redis://app:p%25w%40%3A%2F@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}/3"),
        format!("redis://app:p%25w%40%3A%2F@localhost:{port}/2"),
        format!("redis://127.0.0.1:{port}/?protocol=resp3"),
        format!("unix://{socket}"),
        format!("redis+unix://{socket}?db=4"),
    ] {
        assert_connects(&server, &url).await;
        run(&server, &["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn a_redis_client_may_be_given_instead_of_a_url() {
    let server = Server::start().await;
    let given = redis::Client::open(format!("{}/5", server.url())).unwrap();
    let client = Client::connect(given).await.unwrap();
    let _guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
    assert!(server.keys().await.is_empty(), "database 0");
    assert_eq!(run_all(&server).await, 1 + 1, "the lock's and the client's");
}

// ---- servers that refuse

/// Everything that a request can be answered with by a server that refuses it.
async fn assert_refused(lock: &RwLock, remedy: &str) {
    let results = [
        soon("an answer", lock.write().acquire_fair()).await.map(drop),
        soon("an answer", lock.read().try_acquire()).await.map(drop),
        soon("an answer", lock.read().try_acquire_for(Duration::from_secs(60)))
            .await
            .map(drop),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Server { .. }), "{error:?}");
        assert_helpful(&error, lock.name(), remedy);
    }
}

#[tokio::test]
async fn a_key_of_another_type_under_the_locks_name_is_an_error_and_is_left_alone() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("the lock");
    run(&server, &["SET", "fairlock:{the lock}", "somebody else's"]).await;
    assert_refused(&lock, "a key of another kind lies under the lock's name").await;
    assert_eq!(server.keys().await, ["fairlock:{the lock}"]);
    run(&server, &["DEL", "fairlock:{the lock}"]).await;
    assert!(lock.write().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn when_memory_is_exhausted_new_requests_are_refused_but_holds_stay_and_are_handed_over() {
    in_time(async || {
        let server = Server::start().await;
        if server.is_before_7().await {
            println!("skipped: before Redis 7 no script writes without memory");
            return;
        }
        let client = Client::builder()
            .lease(Duration::from_secs(1))
            .connect(server.url())
            .await
            .unwrap();
        let lock = client.rw_lock("the lock");
        let guard = lock.write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("the lock", 1).await;
        run(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
        assert_refused(&lock, "raise maxmemory").await;
        assert_refused(&client.rw_lock("another lock"), "raise maxmemory").await;
        assert!(
            server
                .keys()
                .await
                .iter()
                .all(|key| key.starts_with("fairlock:{the lock}"))
        );

        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            assert!(guard.is_held(), "renewed for three leases");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        guard.release().await.unwrap();
        let next = soon("the hand-over", waiter).await.unwrap().unwrap();
        next.release().await.unwrap();
        run(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
        assert!(lock.write().try_acquire().await.unwrap().is_some());
    })
    .await;
}

/// Takes rights from the user whose client is connected, or gives them.
async fn rights(server: &Server, rules: &[&str]) {
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">s3cret"];
    command.extend(rules);
    run(server, &command).await;
}

const ALL: [&str; 5] = ["resetkeys", "resetchannels", "~fairlock:*", "&fairlock:*", "+@all"];

async fn as_user(server: &Server) -> Client {
    rights(server, &ALL).await;
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    Client::builder()
        .lease(Duration::from_secs(3))
        .connect(url)
        .await
        .expect("a login with all rights")
}

#[tokio::test]
async fn a_user_without_the_rights_is_refused_with_the_rights_to_give_and_nothing_is_written() {
    let server = Server::start().await;
    let lock = as_user(&server).await.rw_lock("the lock");
    let reads_only: &[&str] = match server.is_before_7().await {
        true => &["resetkeys"],
        false => &["resetkeys", "%R~fairlock:*"],
    };
    for rules in [
        &["-eval", "-evalsha"][..],
        &["-@scripting"],
        &["resetkeys"],
        &["resetkeys", "~fairlock:{the?lock}"],
        reads_only,
    ] {
        rights(&server, &ALL).await;
        rights(&server, rules).await;
        assert_refused(&lock, "let its ACL user run").await;
        assert!(server.keys().await.is_empty(), "{rules:?}");
    }
    rights(&server, &ALL).await;
    lock.write().acquire_fair().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_user_without_a_command_that_the_scripts_call_is_told_which_rights_to_give() {
    let server = Server::start().await;
    let lock = as_user(&server).await.rw_lock("the lock");
    // Redis 7 words this differently when a script does what its user may not.
    for rules in [&["-hset"][..], &["-hmget"], &["-time"], &["-@write"]] {
        rights(&server, &ALL).await;
        rights(&server, rules).await;
        assert_refused(&lock, "let its ACL user run").await;
        assert!(server.keys().await.is_empty(), "{rules:?}");
    }
}

#[tokio::test]
async fn an_unknown_database_is_told_to_be_chosen_again() {
    let server = Server::start().await;
    refused(&format!("{}/99", server.url()), "database number").await;
}

#[tokio::test]
async fn a_refused_default_lease_does_not_speak_of_a_lock_without_a_name() {
    let server = Server::start().await;
    let refused = Client::builder().lease(Duration::ZERO).connect(server.url()).await;
    let text = refused.unwrap_err().to_string();
    assert!(!text.contains("lock \"\""), "{text}");
}

#[tokio::test]
async fn a_user_that_may_not_subscribe_cannot_connect() {
    let server = Server::start().await;
    for rules in [&["resetchannels"][..], &["-subscribe"], &["-@pubsub"]] {
        rights(&server, &ALL).await;
        rights(&server, rules).await;
        let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
        refused(&url, "let its ACL user run").await;
    }
}

#[tokio::test]
async fn rights_named_by_the_remedy_are_enough() {
    let server = Server::start().await;
    let list = "-@all +@connection +@scripting +@pubsub +@hash +@sortedset +@set +@string +expire \
                +pexpireat +del +time";
    let channels = ["resetchannels", "&fairlock:*", "&fairlock:{*}:events"];
    let rules: Vec<_> = list.split(' ').chain(["~fairlock:*"]).chain(channels).collect();
    rights(&server, &rules).await;
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    assert_connects(&server, &url).await;
}

#[tokio::test]
async fn a_grant_whose_message_is_refused_is_learned_by_renewal() {
    let server = Server::start().await;
    let client = as_user(&server).await;
    let lock = client.rw_lock("the lock");
    for rules in [&["-publish"][..], &["resetchannels"]] {
        rights(&server, &ALL).await;
        let guard = lock.write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("the lock", 1).await;
        // Channels that are taken away end the subscriptions to them.
        rights(&server, rules).await;
        guard.release().await.unwrap();
        let next = soon("the grant", waiter).await.unwrap().unwrap();
        assert!(next.is_held(), "{rules:?}");
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_user_that_is_deleted_while_it_waits_learns_what_to_do() {
    let server = Server::start().await;
    let lock = as_user(&server).await.rw_lock("the lock");
    let guard = lock.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(lock.read().acquire_fair());
    server.until_queued("the lock", 1).await;
    rights(&server, &["-@all"]).await;
    let error = soon("the waiter told", waiter).await.unwrap().unwrap_err();
    assert_helpful(&error, "the lock", "let its ACL user run");
    soon("the hold lost", guard.lost()).await;
}

// ---- errors

#[tokio::test]
async fn every_refusal_of_an_owner_or_a_policy_names_the_lock_and_says_what_to_do() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("the lock");
    let (a, b) = (lock.with_owner(&Owner::new()), lock.with_owner(&Owner::new()));
    let anonymous = lock.write().acquire_fair().await.unwrap();
    let nobody: Owner = "00000000-0000-0000-0000-000000000000".parse().unwrap();
    for owner in [anonymous.owner(), nobody] {
        let error = lock.with_owner(&owner).read().try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::InvalidOwner { .. }), "{error:?}");
        assert_helpful(&error, "the lock", "Owner::new()");
    }
    anonymous.release().await.unwrap();

    let _held = (
        a.read().acquire_fair().await.unwrap(),
        b.read().acquire_fair().await.unwrap(),
    );
    let waiting = tokio::spawn(a.write().acquire_fair());
    server.until_queued("the lock", 1).await;
    let error = a.write().acquire_fair().await.unwrap_err();
    assert!(matches!(error, Error::OwnerWaiting { .. }), "{error:?}");
    assert_helpful(&error, "the lock", "an Owner of its own");
    let error = b.write().acquire_fair().await.unwrap_err();
    assert!(matches!(error, Error::UpgradeConflict { .. }), "{error:?}");
    assert_helpful(&error, "the lock", "release this read hold");
    let error = lock.policy(Policy::WriterFirst).read().try_acquire().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::PolicyMismatch {
                stored: Policy::Fifo,
                ..
            }
        ),
        "{error:?}"
    );
    assert_helpful(&error, "the lock", "use that");
    waiting.abort();
}

#[tokio::test]
async fn every_way_to_end_without_the_lock_names_it_and_says_what_to_do() {
    let mut server = Server::start().await;
    let client = Client::builder()
        .lease(Duration::from_secs(1))
        .connect(server.url())
        .await
        .unwrap();
    let lock = client.rw_lock("the lock");
    let guard = lock.write().acquire_fair().await.unwrap();
    server.kill();
    let error = soon("an answer", client.rw_lock("another").write().acquire_fair())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_helpful(&error, "another", "up and reachable");
    soon("the loss", guard.lost()).await;
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert_helpful(&error, "the lock", "acquire it again");
    soon("the end", client.shutdown()).await;
    let error = lock.write().try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Shutdown { .. }), "{error:?}");
    assert_helpful(&error, "the lock", "connect a new one");
}
