//! Who may see and change what.

use super::Served;
use crate::command::{Cli, ended, said};
use crate::scene::queue;
use fairlock_support::server::Server;
use serde_json::json;

#[tokio::test]
async fn every_answer_forbids_what_the_page_does_not_need_and_the_page_needs_nothing_from_elsewhere() {
    let server = Server::start().await;
    let served = Served::start(&Cli::of(&server), &[]).await;
    let paths = [
        "/",
        "/page.css",
        "/page.js",
        "/icon.svg",
        "/api/site",
        "/api/locks",
        "/api/waits",
        "/api/history",
    ];
    let errors = [
        "/nothing",
        "/api/lock",
        "/api/lock?name=nothing",
        "/api/locks?first=x",
        "/api/evict",
    ];
    for path in paths.into_iter().chain(errors) {
        let answer = served.get(path).await;
        assert_eq!(answer.status == 200, paths.contains(&path), "{path}: {answer:?}");
        for header in [
            "\r\ncontent-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
             require-trusted-types-for 'script'; trusted-types 'none'\r\n",
            "\r\ncache-control: no-store",
            "\r\nx-content-type-options: nosniff",
            "\r\nx-frame-options: deny",
            "\r\nreferrer-policy: no-referrer",
            "\r\ncross-origin-resource-policy: same-origin",
            "\r\ncross-origin-opener-policy: same-origin",
        ] {
            assert!(answer.head.contains(header), "{path} has no {header}: {answer:?}");
        }
        assert!(!answer.head.contains("access-control-"), "{path}: {answer:?}");
    }
    for path in ["/", "/page.css", "/page.js"] {
        let answer = served.get(path).await;
        assert!(!answer.body.contains("://"), "{path} names another place: {answer:?}");
    }
    let page = served.get("/").await;
    assert!(page.head.contains("content-type: text/html; charset=utf-8"), "{page:?}");
    // The policy would refuse these.
    for inline in ["<style", "style=", "onclick", "javascript:", "<script>"] {
        assert!(!page.body.contains(inline), "{inline}");
    }
    let script = served.get("/page.js").await.body;
    for maker in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    ] {
        assert!(!script.contains(maker), "{maker}");
    }
    let preflight = "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n";
    let refused = served.asked("OPTIONS", "/api/evict", preflight, "").await;
    assert_eq!(refused.status, 405, "{refused:?}");
    assert!(!refused.head.contains("access-control-"), "{refused:?}");
}

#[tokio::test]
async fn only_known_hosts_are_answered_so_that_no_foreign_name_can_lead_here() {
    let server = Server::start().await;
    let served = Served::start(&Cli::of(&server), &["--host", "locks.example"]).await;
    let of_host = async |path: &str, lines: &str| {
        let request = format!("GET {path} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n");
        served.raw(&request).await.status
    };
    let port = served.address.rsplit_once(':').unwrap().1;
    for host in [
        "localhost",
        &format!("localhost:{port}"),
        "127.0.0.1:9000",
        "[::1]",
        "Locks.Example",
        &served.address,
    ] {
        assert_eq!(of_host("/api/locks", &format!("Host: {host}\r\n")).await, 200, "{host}");
    }
    for lines in [
        "Host: evil.example\r\n",
        "Host: localhost.evil.example\r\n",
        "Host: 10.0.0.1\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
        "",
    ] {
        for path in ["/", "/api/locks", "/api/events", "/api/evict"] {
            let status = of_host(path, lines).await;
            assert!([400, 421].contains(&status), "{path} with {lines:?}: {status}");
        }
    }
    assert_eq!(of_host("http://evil.example/", "Host: localhost\r\n").await, 421);
    let refused = served
        .raw("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        .await;
    assert!(said(&refused.body, &["localhost", "--host NAME"]), "{refused:?}");
}

#[tokio::test]
async fn nobody_evicts_by_a_page_that_only_shows() {
    let server = Server::start().await;
    let (owner, _clients) = queue(&server, "a").await;
    let cli = Cli::of(&server);
    let variables = [("FAIRLOCK_SERVE_TOKEN", "0123456789abcdef")];
    let served = Served::start_with(&cli, &[], &variables).await;
    for token in [None, Some("0123456789abcdef"), Some("")] {
        let refused = served.evict(token, "a", &owner.to_string()).await;
        assert_eq!(refused.status, 403, "{refused:?}");
        assert!(refused.body.contains("--evict"), "{refused:?}");
    }
    assert_eq!(cli.owner_of("a").await, owner.to_string());
    assert_eq!(served.document("/api/site").await["evict"], false);
}

#[tokio::test]
async fn evictions_need_the_token_in_a_header_of_a_post() {
    let server = Server::start().await;
    let (owner, _clients) = queue(&server, "a").await;
    let owner = owner.to_string();
    let cli = Cli::of(&server);
    let mut served = Served::start(&cli, &["--evict"]).await;
    let token = served.token().await;
    assert_eq!(token.len(), 32, "{token}");
    let other = Served::start(&cli, &["--evict"]).await.token().await;
    assert_ne!(token, other, "each start has a token of its own");

    let wrong = format!("{}0", &token[..31]);
    let wrong = if wrong == token {
        format!("{}1", &token[..31])
    } else {
        wrong
    };
    for said in [
        None,
        Some(""),
        Some(&token[..31]),
        Some(&*format!("{token}0")),
        Some(&*wrong),
        Some(&*other),
    ] {
        let refused = served.evict(said, "a", &owner).await;
        assert_eq!(refused.status, 403, "{said:?}: {refused:?}");
        assert!(refused.body.contains("Fairlock-Token"), "{refused:?}");
        assert!(!refused.body.contains(&token), "{refused:?}");
    }
    let header = format!("Fairlock-Token: {token}\r\n");
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        let refused = served.asked(method, "/api/evict", &header, "").await;
        assert_eq!(refused.status, 405, "{method}: {refused:?}");
    }
    let long = " ".repeat(17 * 1024);
    for body in [
        "",
        "{}",
        "[]",
        r#"{"lock": "a"}"#,
        r#"{"lock": "a", "owner": 1}"#,
        r#"{"lock": "a", "owner": "me"}"#,
        &long,
    ] {
        let refused = served.asked("POST", "/api/evict", &header, body).await;
        assert_eq!(refused.status, 400, "{refused:?}");
    }
    assert_eq!(served.evict(Some(&token), "nothing", &owner).await.status, 404);
    assert_eq!(cli.owner_of("a").await, owner);

    let evicted = served.evict(Some(&token), "a", &owner).await;
    assert_eq!(
        (evicted.status, evicted.json()),
        (200, json!({"lock": "a", "owner": owner, "evicted": 1, "servers": null}))
    );
    assert_eq!(
        cli.json(&["show", "a"]).await["holders"][0]["client"]["label"],
        "mailing"
    );
    assert!(said(
        &served.says().await,
        &["127.0.0.1:", "evicted", &owner, "from a: 1 request"]
    ));
    assert_eq!(served.evict(Some(&token), "a", &owner).await.json()["evicted"], 0);
}

#[tokio::test]
async fn the_token_may_come_from_a_variable_if_it_is_long_enough() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, _clients) = queue(&server, "a").await;
    let token = "chosen-by-an-operator";
    let served = Served::start_with(&cli, &["--evict"], &[("FAIRLOCK_SERVE_TOKEN", token)]).await;
    assert_eq!(served.evict(Some(token), "a", &owner.to_string()).await.status, 200);
    for token in ["", "short", "sixteen letters or more, but blanks"] {
        let mut command = cli.command(&["serve", "--listen", "127.0.0.1:0", "--evict"]);
        let refused = ended(command.env("FAIRLOCK_SERVE_TOKEN", token).spawn().unwrap()).await;
        assert_eq!(refused.status, 64, "{token:?}: {refused:?}");
        assert!(
            said(&refused.stderr, &["FAIRLOCK_SERVE_TOKEN", "16 or more"]),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn another_address_than_loopback_is_served_with_a_warning() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let served = Served::start(&cli, &[]).await;
    assert!(served.address.starts_with("127.0.0.1:"), "{}", served.address);
    let taken = cli.run(&["serve", "--listen", &served.address]).await;
    assert_eq!(taken.status, 69, "{taken:?}");
    assert!(
        said(&taken.stderr, &["cannot listen on", &served.address, "--listen"]),
        "{taken:?}"
    );
    assert_eq!(cli.run(&["serve", "--listen", "everywhere"]).await.status, 64);

    let mut open = Served::start(&cli, &["--listen", "0.0.0.0:0"]).await;
    let warning = open.says().await;
    assert!(
        said(
            &warning,
            &["warning", "0.0.0.0", "sees the names of locks", "no login", "ssh -L"]
        ),
        "{warning}"
    );
    // What it prints is an address that it answers to.
    assert!(open.address.starts_with("127.0.0.1:"), "{}", open.address);
    assert_eq!(open.get("/api/locks").await.status, 200);
}
