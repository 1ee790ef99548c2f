//! What the page is told of locks, and what that costs the server.

use super::{Served, encoded};
use crate::command::Cli;
use crate::scene::{HOSTILE, LONG, client, queue, spoil, stay};
use fairlock::{Client, Owner, WriteGuard};
use fairlock_support::packed::run_out;
use fairlock_support::server::{Server, connected};
use futures::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

#[tokio::test]
async fn the_documents_are_those_of_ls_show_and_blockers() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_, clients) = queue(&server, "invoice:42").await;
    let _reading = clients[1].rw_lock("catalog").read().acquire_fair().await.unwrap();
    let served = Served::start(&cli, &[]).await;
    // Times go on between the two, so only their shape and what stands still is compared.
    let keys = |value: &Value| {
        value
            .as_object()
            .map(|object| object.keys().cloned().collect::<Vec<_>>())
    };
    let (list, listed) = (served.document("/api/locks").await, cli.json(&["ls"]).await);
    assert_eq!(
        list["totals"],
        json!({"in_use": 2, "holding": 2, "waiting": 2, "unread": 0}),
        "{list}"
    );
    for at in 0..2 {
        assert_eq!(keys(&list["locks"][at]), keys(&listed[at]));
        assert_eq!(list["locks"][at]["lock"], listed[at]["lock"]);
        assert_eq!(list["locks"][at]["holder"]["owner"], listed[at]["holder"]["owner"]);
    }
    let (lock, shown) = (
        served.document("/api/lock?name=invoice%3A42").await,
        cli.json(&["show", "invoice:42"]).await,
    );
    assert_eq!(keys(&lock), keys(&shown));
    for list in ["holders", "waiters"] {
        assert_eq!(keys(&lock[list][0]), keys(&shown[list][0]));
        assert_eq!(lock[list][0]["owner"], shown[list][0]["owner"]);
    }
    let (chain, told) = (
        served.document("/api/blockers?subject=auditing").await,
        cli.json(&["blockers", "auditing"]).await,
    );
    assert_eq!(
        (keys(&chain), keys(&chain["waits"][0])),
        (keys(&told), keys(&told["waits"][0]))
    );
    assert_eq!(chain["waits"][0]["ahead"][0]["client"]["label"], "mailing");

    for (path, status, words) in [
        (
            "/api/lock?name=nothing",
            404,
            "no such lock under prefix fairlock: nothing",
        ),
        ("/api/lock", 400, "name= is missing"),
        ("/api/locks?limit=many", 400, "limit has to be a number"),
        (
            "/api/lock?name=invoice%3A42&first=18446744073709551615",
            400,
            "first is at most 4294967295",
        ),
        ("/api/locks?order=size", 400, "order is one of"),
        ("/api/history?order=size", 400, "order is latest or longest"),
    ] {
        let answer = served.get(path).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let error = answer.json()["error"].as_str().expect("an error").to_owned();
        assert!(error.contains(words), "{path}: {error}");
    }
    let beyond = served.document("/api/lock?name=invoice%3A42&first=4294967295").await;
    assert_eq!(beyond["waiters"], json!([]));
}

#[tokio::test]
async fn a_lock_that_cannot_be_read_is_the_first_line_and_hides_no_other() {
    let server = Server::start().await;
    let (_, _clients) = queue(&server, "invoice:42").await;
    spoil(&server, "fairlock:{text}").await;
    let served = Served::start(&Cli::of(&server), &["--interval", "1h"]).await;
    let list = served.document("/api/locks").await;
    assert_eq!(
        list["totals"],
        json!({"in_use": 1, "holding": 1, "waiting": 2, "unread": 1}),
        "{list}"
    );
    let wrong = &list["locks"][0];
    assert_eq!(
        (&list["matching"], &wrong["lock"]),
        (&2.into(), &"text".into()),
        "{list}"
    );
    assert!(wrong["error"].as_str().unwrap().contains("WRONGTYPE"), "{list}");
    assert_eq!(list["locks"][1]["lock"], "invoice:42");
    for (query, names) in [
        ("first=1", json!(["invoice:42"])),
        ("limit=1", json!(["text"])),
        ("first=1&limit=1", json!(["invoice:42"])),
        ("first=2", json!([])),
        ("text=TEX", json!(["text"])),
        ("text=billing", json!(["invoice:42"])),
    ] {
        let list = served.document(&format!("/api/locks?{query}")).await;
        let shown: Value = list["locks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|lock| lock["lock"].clone())
            .collect();
        assert_eq!(shown, names, "{query}: {list}");
    }
    let waits = served.document("/api/waits").await;
    assert_eq!(
        (&waits["trees"][0]["lock"], &waits["unread"][0]["lock"]),
        (&"invoice:42".into(), &"text".into()),
        "{waits}"
    );
    let chain = served.document("/api/blockers?subject=auditing").await;
    assert_eq!(chain["unread"][0]["lock"], "text", "{chain}");
}

#[tokio::test]
async fn a_lock_that_becomes_unreadable_between_two_looks_says_so_in_its_line() {
    let server = Server::start().await;
    let (_client, _guards) = many(&server, 1000).await;
    // Looks at all locks are rare, because each of them takes long. The lines of a page are read again at each request.
    let served = Served::start(&Cli::of(&server), &["--interval", "1ms"]).await;
    for spoiled in 0..100 {
        let lock = format!("lock:{spoiled:05}");
        spoil(&server, &format!("fairlock:{{{lock}}}")).await;
        let list = served.document(&format!("/api/locks?text={}", encoded(&lock))).await;
        let line = &list["locks"][0];
        assert_eq!(
            (&list["matching"], &line["lock"]),
            (&1.into(), &Value::from(lock)),
            "{list}"
        );
        assert!(line["error"].as_str().unwrap().contains("WRONGTYPE"), "{list}");
        // The look at all locks that counts it has not been yet.
        if list["totals"]["unread"].as_u64().unwrap() <= spoiled {
            return;
        }
    }
    panic!("a look at all locks was always due");
}

#[tokio::test]
async fn trees_begin_with_the_lock_whose_holder_waits_for_nothing() {
    let server = Server::start().await;
    let clients = join_all(["root", "middle", "leaf"].map(|label| client(&server, label))).await;
    let _root = clients[0].rw_lock("a").write().acquire_fair().await.unwrap();
    let _middle = clients[1].rw_lock("b").write().acquire_fair().await.unwrap();
    stay(clients[1].rw_lock("a").write());
    stay(clients[2].rw_lock("b").read());
    for lock in ["a", "b"] {
        server.until_queued(lock, 1).await;
    }
    let served = Served::start(&Cli::of(&server), &[]).await;
    let waits = served.document("/api/waits").await;
    let trees = waits["trees"].as_array().unwrap();
    assert_eq!(
        (trees.len(), &trees[0]["lock"], &trees[0]["circle"]),
        (1, &"a".into(), &false.into()),
        "{waits}"
    );
    assert_eq!(trees[0]["holders"][0]["client"]["label"], "root");
    let waiter = &trees[0]["waiters"][0];
    assert_eq!(
        (&waiter["client"]["label"], &waiter["holds"][0]["lock"]),
        (&"middle".into(), &"b".into())
    );
    assert_eq!(waiter["holds"][0]["waiters"][0]["client"]["label"], "leaf");
    assert_eq!((&waits["deadlocks"], &waits["more"]), (&json!([]), &0.into()));
}

/// Neither looks for deadlocks itself.
async fn two_clients(server: &Server) -> [Client; 2] {
    let builder = || Client::builder().lease(LONG).deadlock_timeout(LONG);
    [
        connected(builder(), server.url()).await,
        connected(builder(), server.url()).await,
    ]
}

/// Each of two owners, of a client each, writes one of two locks and waits for the other one.
async fn deadlock(server: &Server, clients: &[Client; 2], owners: [Owner; 2], names: [&str; 2]) -> [WriteGuard; 2] {
    let lock = |at: usize, name: usize| clients[at].rw_lock(names[name]).with_owner(&owners[at]);
    let held = [
        lock(0, 0).write().acquire_fair().await.unwrap(),
        lock(1, 1).write().acquire_fair().await.unwrap(),
    ];
    stay(lock(0, 1).write());
    stay(lock(1, 0).write());
    for name in names {
        server.until_queued(name, 1).await;
    }
    held
}

#[tokio::test]
async fn owners_that_wait_for_each_other_are_a_deadlock() {
    let server = Server::start().await;
    let clients = two_clients(&server).await;
    let owners = [Owner::new(), Owner::new()];
    let _held = deadlock(&server, &clients, owners, ["a", "b"]).await;
    // One look at all locks is enough: only the locks of the circle are read again.
    let served = Served::start(&Cli::of(&server), &["--interval", "1h"]).await;
    let waits = served.document("/api/waits").await;
    let deadlocks = waits["deadlocks"].as_array().unwrap();
    assert_eq!(
        (deadlocks.len(), deadlocks[0].as_array().unwrap().len()),
        (1, 2),
        "{waits}"
    );
    // No lock of a circle is a root, and the tree ends all the same.
    assert_eq!(
        (&waits["trees"][0]["circle"], &waits["more"]),
        (&true.into(), &0.into()),
        "{waits}"
    );
    // A lock that cannot be read a second time hides nothing but its own circle.
    spoil(&server, "fairlock:{b}").await;
    let waits = served.document("/api/waits").await;
    assert_eq!(
        (&waits["deadlocks"], &waits["unread"][0]["lock"]),
        (&json!([]), &"b".into()),
        "{waits}"
    );
    assert_eq!(waits["unread"].as_array().unwrap().len(), 1, "{waits}");
    assert!(
        waits["trees"][0]["waiters"][0]["holds"][0]["lock"].is_string(),
        "{waits}"
    );
    let chain = served.document("/api/blockers?subject=a").await;
    assert_eq!(
        (&chain["deadlock"], &chain["unread"][0]["lock"]),
        (&Value::Null, &"b".into()),
        "{chain}"
    );
}

#[tokio::test]
async fn a_deadlock_is_found_behind_many_owners_that_hold_and_wait_without_one() {
    let server = Server::start().await;
    let clients = two_clients(&server).await;
    // Owners are searched in the order of their UUIDs.
    let owner = |number: u128| Owner::from_uuid(Uuid::from_u128(number));
    let root = clients[0].rw_lock("root").write().acquire_fair().await.unwrap();
    let mut guards = vec![];
    for number in 1..=100 {
        let (name, owner) = (format!("chain{number}"), owner(number));
        guards.push(
            clients[0]
                .rw_lock(name)
                .with_owner(&owner)
                .write()
                .acquire_fair()
                .await
                .unwrap(),
        );
        // One long chain, and many owners that wait for its end.
        let next = match number {
            1..60 => format!("chain{}", number + 1),
            _ => "root".to_owned(),
        };
        stay(clients[0].rw_lock(next).with_owner(&owner).write());
    }
    server.until_queued("root", 41).await;
    let last = [u128::MAX - 1, u128::MAX].map(owner);
    let _held = deadlock(&server, &clients, last, ["a", "b"]).await;
    let served = Served::start(&Cli::of(&server), &["--interval", "1h"]).await;
    let waits = served.document("/api/waits").await;
    let deadlocks = &waits["deadlocks"];
    assert_eq!(deadlocks.as_array().map(Vec::len), Some(1), "{deadlocks}");
    assert_eq!(deadlocks[0][0]["owner"], last[0].to_string(), "{deadlocks}");
    assert_eq!(waits["unsearched"], 0);
    drop(root);
}

#[tokio::test]
async fn of_many_deadlocks_some_are_shown_and_the_number_of_owners_that_were_not_searched() {
    let server = Server::start().await;
    let clients = two_clients(&server).await;
    let mut guards = vec![];
    for number in 0..40 {
        let names = ["a", "b"].map(|name| format!("{name}{number}"));
        let owners = [Owner::new(), Owner::new()];
        let names = names.each_ref().map(String::as_str);
        guards.push(deadlock(&server, &clients, owners, names).await);
    }
    let served = Served::start(&Cli::of(&server), &["--interval", "1h"]).await;
    let waits = served.document("/api/waits").await;
    assert_eq!(waits["deadlocks"].as_array().map(Vec::len), Some(32), "{waits}");
    let unsearched = waits["unsearched"].as_u64().unwrap();
    // Owners in a circle that is shown are known, wherever their turn is.
    assert!((8..=16).contains(&unsearched), "{unsearched}");
}

#[tokio::test]
async fn names_and_labels_leave_as_json_and_as_nothing_else() {
    let server = Server::start().await;
    let markup = "</script><img src=x onerror=alert(1)>\"'&amp;";
    let holder = client(&server, "<b>&\"label\"").await;
    let mut guards = Vec::new();
    for name in [HOSTILE, markup] {
        guards.push(holder.rw_lock(name).write().acquire_fair().await.unwrap());
    }
    let served = Served::start(&Cli::of(&server), &[]).await;
    for name in [HOSTILE, markup] {
        let path = format!("/api/lock?name={}", encoded(name));
        let answer = served.get(&path).await;
        assert!(answer.head.contains("content-type: application/json"), "{answer:?}");
        assert_eq!(answer.json()["lock"], name);
        assert_eq!(answer.json()["holders"][0]["client"]["label"], "<b>&\"label\"");
        assert_eq!(answer.body.lines().count(), 1, "{answer:?}");
        let list = served.document(&format!("/api/locks?text={}", encoded(name))).await;
        assert_eq!(
            (&list["matching"], &list["locks"][0]["lock"]),
            (&1.into(), &name.into())
        );
    }
    // An error repeats the name escaped.
    let unknown = served
        .get(&format!("/api/lock?name={}", encoded("evil\r\nset-cookie: a=b")))
        .await;
    assert_eq!(unknown.status, 404);
    assert!(!unknown.head.contains("set-cookie"), "{unknown:?}");
}

/// Makes locks that are held, as many as that.
async fn many(server: &Server, locks: usize) -> (Client, Vec<fairlock::WriteGuard>) {
    let client = client(server, "many").await;
    let lock = |at: usize| client.rw_lock(format!("lock:{at:05}")).write().acquire_fair();
    let guards = join_all((0..locks).map(lock)).await;
    let guards = guards.into_iter().map(Result::unwrap).collect();
    (client, guards)
}

#[tokio::test]
async fn many_locks_come_in_pages_and_many_browsers_cost_one_look() {
    const LOCKS: usize = 5000;
    let server = Server::start().await;
    let (client, _guards) = many(&server, LOCKS).await;
    stay(client.rw_lock("lock:04321").write());
    server.until_queued("lock:04321", 1).await;
    let served = Served::start(&Cli::of(&server), &["--interval", "1h"]).await;
    let (scans, scripts) = (server.calls("scan").await, server.script_calls().await);
    let list = served.document("/api/locks").await;
    assert_eq!(
        (&list["matching"], &list["totals"]["in_use"]),
        (&LOCKS.into(), &LOCKS.into())
    );
    let lines = list["locks"].as_array().unwrap();
    assert_eq!((lines.len(), &lines[0]["lock"]), (50, &"lock:04321".into()));
    let last = served.document("/api/locks?order=name&first=4990&limit=100").await;
    assert_eq!(last["locks"].as_array().unwrap().len(), 10);
    assert_eq!(last["locks"][9]["lock"], "lock:04999");
    let most = served.document("/api/locks?limit=99999999").await;
    assert_eq!(most["locks"].as_array().unwrap().len(), 200);
    let beyond = served.document("/api/locks?first=99999").await;
    assert_eq!(beyond["locks"], json!([]));
    let some = served.document("/api/locks?text=LOCK%3A0123").await;
    assert_eq!(
        (&some["matching"], &some["locks"][9]["lock"]),
        (&10.into(), &"lock:01239".into()),
        "{some}"
    );
    let of_client = served.document("/api/locks?text=many&limit=1").await;
    assert_eq!(of_client["matching"], LOCKS);
    let all: Vec<_> = join_all((0..20).map(|_| served.document("/api/locks"))).await;
    assert!(all.iter().all(|list| list["matching"] == LOCKS));
    assert_eq!(server.calls("scan").await, scans, "the look is not due");
    assert_eq!(server.script_calls().await, scripts, "nor is that of single locks");

    // A look is followed by a longer pause, so however many ask at once there are two at most.
    let served = Served::start(&Cli::of(&server), &["--interval", "1ms"]).await;
    let (scans, scripts) = (server.calls("scan").await - scans, server.script_calls().await);
    assert!(scans > 0, "the first look is that of the start");
    let asked: Vec<_> = join_all((0..20).map(|_| served.document("/api/locks?limit=5"))).await;
    assert!(asked.iter().all(|list| list["locks"].as_array().unwrap().len() == 5));
    let (rescans, reads) = (server.calls("scan").await, server.script_calls().await - scripts);
    let _ = rescans;
    assert!(
        reads <= 2 * (LOCKS as u64 + 1) + 20 * 5,
        "{reads} statuses for 20 browsers"
    );
}

/// Each of two clients waits for a hundred locks of the other one, so each lock could stand below a hundred waiters.
#[tokio::test]
async fn trees_of_many_locks_are_bounded() {
    const EACH: usize = 100;
    let server = Server::start().await;
    let clients = two_clients(&server).await;
    let lock = |at: usize, n: usize| clients[at].rw_lock(format!("{}{n}", if at == 0 { "a" } else { "b" }));
    let held = (0..2 * EACH).map(|n| lock(n % 2, n / 2).write().acquire_fair());
    let _held = join_all(held).await;
    for (at, other) in [(0, "b"), (1, "a")] {
        (0..EACH).for_each(|n| stay(clients[at].rw_lock(format!("{other}{n}")).write()));
    }
    for n in 0..2 * EACH {
        server.until_queued(lock(n % 2, n / 2).name(), 1).await;
    }
    let served = Served::start(&Cli::of(&server), &["--interval", "1h"]).await;
    let waits = served.document("/api/waits").await;
    let shown = waits.to_string().matches("\"elsewhere\"").count();
    assert!((100..=1200).contains(&shown), "{shown} locks are shown");
    let expanded = waits.to_string().matches("\"elsewhere\":false").count() as u64;
    assert_eq!(expanded + waits["more"].as_u64().unwrap(), 2 * EACH as u64);
}

#[tokio::test]
async fn in_a_quarantine_the_page_blames_nobody_and_is_told_how_long_that_lasts() {
    let server = Server::start().await;
    let builder = Client::builder().label("waiter").lease(LONG).quarantine(LONG);
    let waiter = connected(builder, server.url()).await;
    stay(waiter.rw_lock("a").write());
    server.until_queued("a", 1).await;
    let served = Served::start(&Cli::of(&server), &[]).await;
    let waits = served.document("/api/waits").await;
    let tree = &waits["trees"][0];
    assert_eq!((&tree["lock"], &tree["holders"]), (&"a".into(), &json!([])), "{waits}");
    assert_eq!(tree["holding"], 0, "{waits}");
    assert!(tree["quarantine_ms"].as_u64().is_some_and(|left| left > 0), "{waits}");
    let chain = served.document("/api/blockers?subject=a").await;
    assert_eq!(chain["blame"], json!([]), "{chain}");
}

#[tokio::test]
async fn a_lock_whose_leases_are_over_is_expired_however_few_holders_are_asked_for() {
    let server = Server::start().await;
    let client = client(&server, "reading").await;
    let lock = client.rw_lock("a");
    let _guards = [
        lock.read().acquire_fair().await.unwrap(),
        lock.read().acquire_fair().await.unwrap(),
    ];
    let mut redis = server.redis().await;
    let mut requests = redis::cmd("ZRANGE");
    requests.arg("fairlock:{a}:l").arg(0).arg(-1);
    let requests: Vec<String> = requests.query_async(&mut redis).await.unwrap();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    run_out(&mut redis, "fairlock:{a}", &requests).await;
    let served = Served::start(&Cli::of(&server), &[]).await;
    for (limit, holders) in [(1, 1), (0, 0), (50, 2)] {
        let lock = served.document(&format!("/api/lock?name=a&limit={limit}")).await;
        assert_eq!(lock["holders"].as_array().map(Vec::len), Some(holders), "{lock}");
        assert_eq!(lock["expired"], true, "{limit}: {lock}");
    }
}
