//! A service: its rules, and those of the options.

use super::{breaks, client, login, refused, rights_for, rules, serve, serve_with, without_one};
use crate::conformance;
use crate::server::{PATIENCE, Server, soon};
use fairlock::Error;
use futures::future::join_all;
use redis::Value;
use std::time::Duration;

const SERVICE: [&str; 11] = [
    "acquire", "bounded", "events", "expiry", "owners", "places", "policies", "release", "renew", "status", "unheard",
];

#[tokio::test]
async fn a_service_needs_all_of_its_rules_and_no_more() {
    let server = Server::start_with(&["--acllog-max-len", "10000"]).await;
    let all = rules("service");
    let url = login(&server, "service", &all).await;
    soon("a service", serve(&server, &url, "service"))
        .await
        .expect("all rights");
    for file in SERVICE {
        let passed = conformance::run(&server, &url, file).await;
        assert!(passed.is_ok(), "{passed:?}");
    }
    assert_eq!(refused(&server, "service").await, [""; 0]);

    let reduced = without_one(&all);
    let broken = join_all(reduced.iter().enumerate().map(async |(n, (_, rules))| {
        let user = format!("service-{n}");
        let url = login(&server, &user, rules).await;
        breaks(&server, &user, Box::pin(serve(&server, &url, &user))).await
    }))
    .await;
    for ((right, rules), broken) in reduced.iter().zip(broken) {
        if broken {
            continue;
        }
        // Of a rarer script's or case's.
        let url = login(&server, "rarely", rules).await;
        let mut passes = true;
        for file in SERVICE {
            passes &= conformance::run(&server, &url, file).await.is_ok();
        }
        assert!(!passes, "nothing needs {right}");
    }
}

/// Nobody gives the user its rights while its process ends.
#[tokio::test]
async fn a_shutdown_does_not_repeat_what_the_server_refuses() {
    let server = Server::start().await;
    let all = rules("service");
    let mut none = all.clone();
    none.retain(|rule| !rule.starts_with('~'));
    for is_sealed in [false, true] {
        let url = login(&server, "nobody", &all).await;
        let client = client(&url, "nobody").await.expect("a client");
        let lock = client.rw_lock(if is_sealed { "sealed" } else { "a" });
        let at_least = if is_sealed { PATIENCE } else { Duration::ZERO };
        let guard = lock
            .write()
            .hold_at_least(at_least)
            .acquire_fair()
            .await
            .expect("rights");
        login(&server, "nobody", &none).await;
        let asked = lock.write().acquire_fair().await;
        assert!(matches!(asked, Err(Error::Server { .. })), "{asked:?}");
        drop(guard);
        let before = server.errors("NOPERM").await;
        client.shutdown().await;
        // A call that was under way, and one of the shutdown's own. For three seconds they would be many more.
        let repeated = server.errors("NOPERM").await - before;
        assert!(repeated <= 4, "{repeated} refusals, sealed: {is_sealed}");
    }
}

#[tokio::test]
async fn the_options_need_the_rights_that_the_page_names_for_them() {
    let server = Server::start_with(&["--appendonly", "yes"]).await;
    for option in ["wait_for_replicas", "wait_for_disks", "quarantine"] {
        let rights = rights_for(option);
        assert!(!rights.is_empty());
        let mut known = redis::cmd("COMMAND");
        known.arg("INFO").arg(rights[0].trim_start_matches('+'));
        let known: Vec<Value> = known.query_async(&mut server.redis().await).await.unwrap();
        if known == [Value::Nil] {
            println!("skipped: the server has no {}", rights[0]);
            continue;
        }
        let all = [rules("service"), rights.clone()].concat();
        let user = option.replace('_', "-");
        let url = login(&server, &user, &all).await;
        let served = soon("an answer", serve_with(option, &url, &user)).await;
        served.unwrap_or_else(|error| panic!("{option}: {error}"));
        assert_eq!(refused(&server, &user).await, [""; 0]);
        for right in &rights {
            let rest: Vec<_> = all.iter().filter(|rule| *rule != right).cloned().collect();
            let user = format!("{user}-{}", &right[1..]);
            let url = login(&server, &user, &rest).await;
            let broken = breaks(&server, &user, serve_with(option, &url, &user)).await;
            assert!(broken, "{option} does not need {right}");
        }
    }
}

/// Without it any other client has no label, and works.
#[tokio::test]
async fn a_quarantine_needs_the_right_to_set_for_more_than_a_label() {
    let server = Server::start().await;
    let mut rest = [rules("service"), rights_for("quarantine")].concat();
    rest.retain(|rule| rule != "+set");
    let url = login(&server, "unlabelled", &rest).await;
    let working = client(&url, "unlabelled").await.expect("a client");
    let guard = working.rw_lock("a").write().acquire_fair().await.expect("a lock");
    guard.release().await.expect("rights");
    working.shutdown().await;
    let quarantined = soon("an answer", serve_with("quarantine", &url, "unlabelled")).await;
    assert!(quarantined.is_err(), "it needs no +set");
}
