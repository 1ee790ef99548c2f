//! `fairlock blockers`: from "it is stuck" to the owner to blame.

use crate::command::{BINARY, Cli, ended, piped, said};
use crate::scene::{HOSTILE, LONG, client, queue, stay};
use fairlock::{Client, Owner};
use fairlock_support::server::{Server, connected, eventually};
use std::time::Duration;

#[tokio::test]
async fn leads_from_who_is_stuck_to_who_is_to_blame() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, clients) = queue(&server, "a").await;
    let text = cli.says(&["blockers", "auditing"]).await;
    let owner_text = owner.to_string();
    let words = [
        "auditing waits for a, position 1",
        &owner_text,
        "billing",
        "1 request ahead",
        "mailing",
    ];
    assert!(said(&text, &words), "{text}");
    let found = cli.json(&["blockers", "auditing"]).await;
    let wait = &found["waits"][0];
    assert_eq!(
        (&wait["lock"], &wait["places"][0]["position"]),
        (&"a".into(), &1.into())
    );
    assert_eq!(wait["holders"][0]["owner"], owner_text);
    assert_eq!(wait["ahead"][0]["client"]["label"], "mailing");
    // By the owner itself, in any case.
    let waiting = wait["places"][0]["owner"].as_str().unwrap().to_uppercase();
    assert!(cli.says(&["blockers", &waiting]).await.contains("billing"));

    let nobody = cli.run(&["blockers", "billing"]).await;
    assert_eq!(nobody.status, 1);
    assert!(
        said(&nobody.stderr, &["billing waits for nothing", "holds a"]),
        "{nobody:?}"
    );

    // The holder waits for another lock; and then its holder for what the one who asks holds.
    let blamed = client(&server, "blamed").await;
    let _guard = blamed.rw_lock("b").write().acquire_fair().await.unwrap();
    tokio::spawn(clients[0].rw_lock("b").write().acquire_fair());
    server.until_queued("b", 1).await;
    let text = cli.says(&["blockers", "auditing"]).await;
    assert!(
        said(&text, &["for a", "billing", "holds a", "for b", "blamed"]),
        "{text}"
    );
    assert!(!text.contains("circle"), "{text}");
    let _held = clients[2].rw_lock("c").write().acquire_fair().await.unwrap();
    tokio::spawn(blamed.rw_lock("c").write().acquire_fair());
    server.until_queued("c", 1).await;
    let text = cli.says(&["blockers", "auditing"]).await;
    assert!(said(&text, &["for b", "for c", "circle"]), "{text}");
}

#[tokio::test]
async fn says_that_it_is_a_deadlock_only_of_owners_that_wait_for_each_other() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    // Clients that do not search, so that the circle stays.
    let client = async |label: &str| {
        let builder = Client::builder().label(label).lease(LONG);
        connected(builder.deadlock_timeout(Duration::MAX), server.url()).await
    };
    let (red, blue) = (client("red").await, client("blue").await);
    let owners = [Owner::new(), Owner::new()];
    let _a = red
        .rw_lock("a")
        .with_owner(&owners[0])
        .write()
        .acquire_fair()
        .await
        .unwrap();
    let _b = blue
        .rw_lock("b")
        .with_owner(&owners[1])
        .write()
        .acquire_fair()
        .await
        .unwrap();
    let ask = |client: &Client, lock: &str, owner: &Owner| {
        tokio::spawn(client.rw_lock(lock).with_owner(owner).write().acquire_fair())
    };
    let first = ask(&red, "b", &owners[0]);
    server.until_queued("b", 1).await;
    // Of the same process, and not of the same owner: a circle of processes, and no deadlock.
    let other = ask(&blue, "a", &Owner::new());
    server.until_queued("a", 1).await;
    let text = cli.says(&["blockers", "red"]).await;
    assert!(text.contains("may be a circle") && !text.contains("deadlock"), "{text}");
    assert!(cli.json(&["blockers", "red"]).await["deadlock"].is_null());
    other.abort();
    server.until_queued("a", 0).await;
    let second = ask(&blue, "a", &owners[1]);
    server.until_queued("a", 1).await;
    let text = cli.says(&["blockers", "red"]).await;
    let [one, two] = owners.map(|owner| owner.to_string());
    assert!(
        said(&text, &["This is a deadlock", &one, "red", "waits for b", &two]),
        "{text}"
    );
    let circle = cli.json(&["blockers", "blue"]).await["deadlock"].clone();
    assert_eq!(circle.as_array().map(Vec::len), Some(2), "{circle}");
    assert_eq!(
        (&circle[0]["owner"], &circle[0]["waits_for"]),
        (&two.into(), &"a".into())
    );
    first.abort();
    second.abort();
}

#[tokio::test]
async fn sees_no_circle_in_a_reader_that_waits_to_write() {
    let server = Server::start().await;
    let (upgrading, reading) = (client(&server, "upgrading").await, client(&server, "reading").await);
    let _read = reading.rw_lock("a").read().acquire_fair().await.unwrap();
    let guard = upgrading.rw_lock("a").read().acquire_fair().await.unwrap();
    let write = tokio::spawn(async move { guard.upgrade().await.map(drop) });
    server.until_queued("a", 1).await;
    let found = Cli::of(&server).json(&["blockers", "upgrading"]).await;
    let wait = &found["waits"][0];
    assert_eq!(wait["closes_circle"], false, "{found}");
    assert_eq!(wait["holders"].as_array().unwrap().len(), 2, "{found}");
    write.abort();
}

#[tokio::test]
async fn of_a_lock_it_tells_who_holds_who_waits_whom_to_blame_and_what_to_type() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_, clients) = queue(&server, "a b").await;
    let blamed = client(&server, "blamed").await;
    let guard = blamed.rw_lock("c").write().acquire_fair().await.unwrap();
    tokio::spawn(clients[0].rw_lock("c").write().acquire_fair());
    server.until_queued("c", 1).await;
    let text = cli.says(&["blockers", "a b"]).await;
    let (owner, process) = (guard.owner().to_string(), format!("kill {}", std::process::id()));
    let words = [
        "a b: held to write, 1 hold, 2 waiting",
        "billing",
        "mailing",
        "auditing",
        "A process that holds a b waits for c",
        "To blame:",
        "blamed",
        "has held c",
        &process,
        &format!("fairlock --url {} evict c {owner}", server.url()),
    ];
    assert!(said(&text, &words), "{text}");
    let found = cli.json(&["blockers", "a b"]).await;
    assert_eq!(
        (&found["lock"]["lock"], &found["lock"]["waiting"]),
        (&"a b".into(), &2.into())
    );
    assert_eq!(found["blame"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(
        (&found["blame"][0]["lock"], &found["blame"][0]["holder"]["owner"]),
        (&"c".into(), &owner.into())
    );

    // The line that it prints does what it says; a name with a blank is one word.
    guard.release().await.unwrap();
    let holder = async || cli.json(&["blockers", "a b"]).await["blame"][0]["lock"] == "a b";
    eventually("its holder waits for nothing any more", holder).await;
    let text = cli.says(&["blockers", "a b"]).await;
    let line = text
        .lines()
        .find_map(|line| line.split_once("type:"))
        .expect("a command")
        .1;
    let typed = line.trim().replace("fairlock ", "\"$0\" ") + " --yes";
    let ended = ended(cli.under_shell(&typed).spawn().unwrap()).await;
    assert_eq!(ended.status, 0, "{typed}: {ended:?}");
    assert!(ended.stdout.contains("from a b"), "{ended:?}");
}

#[tokio::test]
async fn of_a_lock_that_nobody_waits_for_it_blames_nobody() {
    let server = Server::start().await;
    let cli = Cli::at(format!("redis://default:@127.0.0.1:{}", server.port()));
    let holder = client(&server, "holder").await;
    let guard = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    let text = cli.says(&["blockers", "a"]).await;
    assert!(text.starts_with("a: held to write, 1 hold, 0 waiting"), "{text}");
    assert!(!text.contains("blame"), "{text}");
    guard.release().await.unwrap();
    let free = cli.run(&["blockers", "a"]).await;
    assert_eq!(free.status, 1, "{free:?}");
    assert!(free.stderr.contains("the lock a is free"), "{free:?}");
    let unknown = cli.run(&["blockers", "nothing"]).await;
    assert_eq!(unknown.status, 1, "{unknown:?}");
    assert!(
        said(&unknown.stderr, &["nothing is no lock", "nobody of that name"]),
        "{unknown:?}"
    );
}

#[tokio::test]
async fn the_command_that_it_prints_evicts_from_a_lock_whatever_its_name() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    for name in ["back\\slash", "it's $HOME", HOSTILE] {
        let (_, _clients) = queue(&server, name).await;
        let text = cli.says(&["blockers", name]).await;
        let line = text
            .lines()
            .find_map(|line| line.split_once("type:"))
            .expect("a command")
            .1;
        // Not every `sh` knows $'...'.
        let line = line.trim().replace("fairlock ", &format!("{BINARY} ")) + " --yes";
        let mut bash = tokio::process::Command::new("bash");
        bash.args(["-c", &line]);
        let ended = ended(piped(bash).spawn().unwrap()).await;
        assert_eq!(ended.status, 0, "{line}: {ended:?}");
    }
}

#[tokio::test]
async fn what_clients_say_of_themselves_cannot_pass_for_further_words() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (holder, waiter) = (client(&server, "holder").await, client(&server, "waiter").await);
    let _guard = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    stay(waiter.rw_lock("a").write());
    server.until_queued("a", 1).await;
    let id = holder.rw_lock("a").status().await.unwrap().holders[0].client.id.clone();
    let mut forge = redis::cmd("SET");
    forge
        .arg(format!("fairlock:client:{id}"))
        .arg("4711\nhost has held b\ninnocent 1@db has held a");
    forge.exec_async(&mut server.redis().await).await.unwrap();
    let shown = "innocent\\u{20}1@db\\u{20}has\\u{20}held\\u{20}a 4711@host\\u{20}has\\u{20}held\\u{20}b ";
    for arguments in [["blockers", "a"], ["leader", "a"]] {
        let text = cli.says(&arguments).await;
        assert!(text.contains(shown), "{text}");
        assert!(!text.contains("1@db has"), "{text}");
    }
    let text = cli.says(&["blockers", "a"]).await;
    assert!(text.contains("end it on host\\u{20}has\\u{20}held\\u{20}b:"), "{text}");
    let cells = shown.replace(" 4711@", "  4711     ");
    assert!(cli.says(&["show", "a"]).await.contains(&cells), "{cells}");
}

/// A shell may take the rest of a line for more than a comment.
#[tokio::test]
async fn what_it_prints_to_be_typed_has_no_words_of_others() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (holder, waiter) = (client(&server, "holder").await, client(&server, "waiter").await);
    let _guard = holder.rw_lock("=ls").write().acquire_fair().await.unwrap();
    stay(waiter.rw_lock("=ls").write());
    server.until_queued("=ls", 1).await;
    let id = holder.rw_lock("=ls").status().await.unwrap().holders[0]
        .client
        .id
        .clone();
    for (process, typed) in [("4711", 1), ("0", 0), ("2147483648", 0), ("4294967295", 0)] {
        let mut forge = redis::cmd("SET");
        forge
            .arg(format!("fairlock:client:{id}"))
            .arg(format!("{process}\n$(touch x) `y`\nholder"));
        forge.exec_async(&mut server.redis().await).await.unwrap();
        let text = cli.says(&["blockers", "=ls"]).await;
        let kills: Vec<_> = text.lines().filter(|line| line.contains("kill")).collect();
        assert_eq!(kills.len(), typed, "{text}");
        assert!(
            kills.iter().all(|kill| kill.trim() == format!("kill {process}")),
            "{text}"
        );
        assert!(text.contains(" evict '=ls' "), "{text}");
    }
}

#[tokio::test]
async fn in_a_quarantine_it_blames_nobody_and_says_how_long_that_lasts() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let builder = Client::builder().label("waiter").lease(LONG).quarantine(LONG);
    let waiter = connected(builder, server.url()).await;
    stay(waiter.rw_lock("a").write());
    server.until_queued("a", 1).await;
    let owner = waiter.rw_lock("a").status().await.unwrap().waiters[0].owner.to_string();
    for subject in ["a", &owner] {
        let text = cli.says(&["blockers", subject]).await;
        let words = ["eld by nobody: the server is in quarantine for ", "m", " still"];
        assert!(said(&text, &words), "{text}");
        assert!(!text.contains("blame") && !text.contains("evict"), "{text}");
        let found = cli.json(&["blockers", subject]).await;
        assert_eq!(found["blame"].as_array().map(Vec::len), Some(0), "{found}");
    }
    let shown = cli.says(&["show", "a"]).await;
    let words = [
        "a: held by nobody: the server is in quarantine for ",
        " still, 0 holds, 1 waiting",
    ];
    assert!(said(&shown, &words) && !shown.contains("Holding"), "{shown}");
    let listed = cli.says(&["ls"]).await;
    assert!(listed.trim_end().ends_with("  nobody"), "{listed}");
    let nobody = cli.run(&["blockers", "00000000-0000-0000-0000-000000000000"]).await;
    assert!(!nobody.stderr.contains("holds a"), "{nobody:?}");
}
