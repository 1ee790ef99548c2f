//! The page of `fairlock serve` in a real browser: what an operator sees, and what hostile names and foreign pages cannot do.

use super::chromium::{Browser, REBOUND};
use crate::command::Cli;
use crate::scene::{HOSTILE, LONG, client, queue, stay};
use crate::serve::{Served, encoded};
use fairlock::{Client, Owner};
use fairlock_support::server::{Server, connected};
use futures::future::join_all;
use serde_json::json;

const MARKUP: &str = "<img src=x onerror=\"window.hurt=1\"><script>window.hurt=1</script>";
const MARKUP_LABEL: &str = "<img/src=x/onerror=window.hurt=1>";

/// The page asked for nothing from elsewhere, and the browser had nothing to complain of.
fn is_quiet(browser: &Browser, served: &Served) {
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    let own = format!("http://{}/", served.address);
    for url in &browser.requested {
        assert!(url.starts_with(&own) || url == "about:blank", "{url}");
    }
}

#[tokio::test]
#[ignore = "needs a Chromium: make browser"]
async fn an_operator_finds_a_lock_sees_it_change_and_evicts_its_holder() {
    let server = Server::start().await;
    let mut browser = Browser::start().await;
    let (owner, _clients) = queue(&server, "invoice:42").await;
    let mut served = Served::start(&Cli::of(&server), &["--interval", "50ms", "--evict"]).await;
    let token = served.token().await;
    browser.open(&format!("http://{}/", served.address)).await;
    browser.shows("locks-rows", "invoice:42").await;
    browser.shows("locks-totals", "1 lock in use, 1 hold, 2 waiting").await;
    browser.shows("state", "evictions allowed").await;

    browser.click("#locks-rows a").await;
    browser.shows("lock-name", "invoice:42").await;
    browser.shows("lock-holders", "billing").await;
    browser.shows("lock-queue", "RW").await;
    browser.shows("lock-waiters", "auditing").await;

    // From a waiter to who blocks it.
    browser.click("#lock-waiters tr:last-child a").await;
    browser.shows("blockers", "write held by billing").await;
    browser.shows("blockers", "read ahead: mailing").await;
    browser.shows("blockers", "To blame").await;
    // From the lock to who blocks it.
    browser.value("location.hash = '#lock=invoice%3A42'").await;
    browser
        .until("the lock has waiters", "!document.getElementById('lock-blame').hidden")
        .await;
    browser.click("#lock-blame").await;
    browser.shows("blockers-subject", "invoice:42").await;
    browser.shows("blockers", "2 waiting").await;
    browser
        .shows(
            "blockers",
            "To blame: their processes wait for no lock.\ninvoice:42 write held by billing",
        )
        .await;
    browser.click("nav a[href='#waits']").await;
    browser.shows("trees", "write held by billing").await;

    browser.value("location.hash = '#lock=invoice%3A42'").await;
    browser.shows("lock-holders", "Evict").await;
    browser.click("#lock-holders button").await;
    browser.shows("evict", &owner.to_string()).await;
    browser.fill("evict-token", "wrong").await;
    browser.click("#evict-do").await;
    browser.shows("evict-answer", "has to be the token").await;
    browser.fill("evict-token", &token).await;
    browser.click("#evict-do").await;
    // The next one holds the lock, and the page shows that by itself.
    browser.shows("lock-holders", "mailing").await;
    browser
        .until("the dialog is gone", "!document.getElementById('evict').open")
        .await;
    browser.click("nav a[href='#history']").await;
    browser.shows("history-rows", "mailing").await;
    browser.shows("history-rows", "granted").await;
    // The wrong token is what the browser complains of, and nothing else.
    browser.complaints.retain(|complaint| !complaint.contains("403"));
    is_quiet(&browser, &served);
}

#[tokio::test]
#[ignore = "needs a Chromium: make browser"]
async fn an_owner_that_reads_twice_has_two_rows_for_as_long_as_it_does() {
    let server = Server::start().await;
    let mut browser = Browser::start().await;
    let client = client(&server, "reading").await;
    let lock = client.rw_lock("a").with_owner(&Owner::new());
    let first = lock.read().acquire_fair().await.unwrap();
    let second = lock.read().acquire_fair().await.unwrap();
    let served = Served::start(&Cli::of(&server), &["--interval", "50ms"]).await;
    browser.open(&format!("http://{}/#lock=a", served.address)).await;
    // Each of these is another look.
    browser.shows("lock-state", "2 holds, 0 waiting").await;
    for waiting in 1..=2 {
        stay(client.rw_lock("a").write());
        server.until_queued("a", waiting).await;
        browser
            .shows("lock-state", &format!("2 holds, {waiting} waiting"))
            .await;
    }
    let rows = "document.getElementById('lock-holders').rows.length";
    assert_eq!(browser.value(rows).await, 2);
    first.release().await.unwrap();
    browser.shows("lock-state", "1 hold,").await;
    assert_eq!(browser.value(rows).await, 1);
    second.release().await.unwrap();
    is_quiet(&browser, &served);
}

#[tokio::test]
#[ignore = "needs a Chromium: make browser"]
async fn events_stand_on_the_page_as_they_happen() {
    let server = Server::start().await;
    let mut browser = Browser::start().await;
    let served = Served::start(&Cli::of(&server), &["--interval", "50ms"]).await;
    let client = client(&server, "watched").await;
    browser.open(&format!("http://{}/#events", served.address)).await;
    let row = "[...document.querySelectorAll('#events-rows tr')].some(row => row.innerText.includes('granted') && row.innerText.includes('news'))";
    // Its announcement may reach the client a moment later.
    while browser.value(row).await != true {
        let guard = client.rw_lock("news").write().acquire_fair().await.unwrap();
        guard.release().await.unwrap();
    }
    browser.click("#events-pause").await;
    browser.fill("events-text", "nothing like this").await;
    browser
        .until(
            "no event matches",
            "document.querySelectorAll('#events-rows tr').length === 0",
        )
        .await;
    browser.click("#events-pause").await;
    browser.fill("events-text", "news").await;
    browser.shows("events-rows", "released").await;
    is_quiet(&browser, &served);
}

#[tokio::test]
#[ignore = "needs a Chromium: make browser"]
async fn names_and_labels_are_only_ever_text() {
    let server = Server::start().await;
    let mut browser = Browser::start().await;
    let builder = Client::builder().label(MARKUP_LABEL).lease(LONG);
    let hostile = connected(builder, server.url()).await;
    for name in [HOSTILE, MARKUP] {
        stay(hostile.rw_lock(name).write());
        stay(hostile.rw_lock(name).write());
    }
    let served = Served::start(&Cli::of(&server), &["--interval", "50ms", "--evict"]).await;
    let base = format!("http://{}/", served.address);
    browser.open(&base).await;
    browser.shows("locks-rows", MARKUP).await;
    browser.shows("locks-rows", MARKUP_LABEL).await;
    // What is invisible or moves text stands there as its number.
    browser
        .shows("locks-rows", "evil\\u{1b}[2J\\u{d}\\u{a}name\\u{202e}}{%7D")
        .await;
    for name in [MARKUP, HOSTILE] {
        browser
            .value(&format!("location.hash = '#lock={}'", encoded(name)))
            .await;
        browser.shows("lock-holders", MARKUP_LABEL).await;
        browser.shows("lock-waiters", MARKUP_LABEL).await;
    }
    browser.click("#lock-holders button").await;
    browser.shows("evict", "name\\u{202e}").await;
    browser.click("#evict-cancel").await;
    browser.value("location.hash = '#waits'").await;
    browser.shows("trees", MARKUP).await;
    browser
        .value(&format!("location.hash = '#blockers={}'", encoded(MARKUP_LABEL)))
        .await;
    browser.shows("blockers", MARKUP).await;
    // The subject comes from a link that anybody may have written.
    let nobody = format!("{MARKUP}nobody");
    browser
        .value(&format!("location.hash = '#blockers={}'", encoded(&nobody)))
        .await;
    browser.shows("blockers-subject", &nobody).await;
    browser.shows("blockers", "It waits for no lock").await;
    // A subject that is a lock, whose holder is to blame or waits itself.
    browser
        .value(&format!("location.hash = '#blockers={}'", encoded(MARKUP)))
        .await;
    browser.shows("blockers", "1 waiting").await;
    browser.shows("blockers", MARKUP_LABEL).await;
    let row = "document.querySelector('#events-rows')?.innerText.includes('<img src=x')";
    browser.value("location.hash = '#events'").await;
    while browser.value(row).await != true {
        // Its announcement may reach the client a moment later.
        let _ = hostile.rw_lock(MARKUP).write().max_queue(0).acquire_fair().await;
        let other = hostile
            .rw_lock(format!("{MARKUP}2"))
            .write()
            .acquire_fair()
            .await
            .unwrap();
        other.release().await.unwrap();
    }
    let made = browser
        .value("document.querySelectorAll('img, body script, iframe').length")
        .await;
    assert_eq!(
        (made, browser.value("typeof window.hurt").await),
        (json!(0), json!("undefined"))
    );
    is_quiet(&browser, &served);
    // Nor could a mistake of the page make HTML of a text: the browser itself refuses.
    for mistake in [
        "document.body.innerHTML = '<b>x</b>'",
        "document.write('x')",
        "eval('1')",
    ] {
        let refused = format!("(() => {{ try {{ {mistake}; return false }} catch {{ return true }} }})()");
        // `Runtime.evaluate` may itself evaluate, so the mistake is made by the page's own code.
        let params = json!({"expression": refused, "returnByValue": true, "allowUnsafeEvalBlockedByCSP": false});
        let reply = browser.call("Runtime.evaluate", params).await;
        assert_eq!(reply["result"]["value"], true, "{mistake}: {reply}");
    }
}

#[tokio::test]
#[ignore = "needs a Chromium: make browser"]
async fn what_clients_say_of_themselves_cannot_pass_for_further_words() {
    let server = Server::start().await;
    let mut browser = Browser::start().await;
    let (holder, waiter) = (client(&server, "holder").await, client(&server, "waiter").await);
    let _guard = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    stay(waiter.rw_lock("a").write());
    server.until_queued("a", 1).await;
    let id = holder.rw_lock("a").status().await.unwrap().holders[0].client.id.clone();
    let mut forge = redis::cmd("SET");
    forge
        .arg(format!("fairlock:client:{id}"))
        .arg("4711\nhost has held b\ninnocent 1@db\u{a0}has held a");
    forge.exec_async(&mut server.redis().await).await.unwrap();
    let served = Served::start(&Cli::of(&server), &["--interval", "50ms"]).await;
    browser.open(&format!("http://{}/#blockers=a", served.address)).await;
    browser.shows("blockers", "To blame").await;
    let shown = "innocent\\u{20}1@db\\u{a0}has\\u{20}held\\u{20}a 4711@host\\u{20}has\\u{20}held\\u{20}b ";
    browser.shows("blockers", shown).await;
    is_quiet(&browser, &served);
}

#[tokio::test]
#[ignore = "needs a Chromium: make browser"]
async fn many_locks_are_read_in_pages_and_found_by_a_word() {
    let server = Server::start().await;
    let mut browser = Browser::start().await;
    let client = client(&server, "many").await;
    let locks = (0..1000).map(|at| client.rw_lock(format!("lock:{at:05}")).write().acquire_fair());
    let _guards: Vec<_> = join_all(locks).await.into_iter().map(Result::unwrap).collect();
    let served = Served::start(&Cli::of(&server), &["--interval", "50ms"]).await;
    browser.open(&format!("http://{}/", served.address)).await;
    browser.shows("locks-pages", "1 to 50 of 1000").await;
    browser
        .until(
            "fifty rows",
            "document.querySelectorAll('#locks-rows tr').length === 50",
        )
        .await;
    browser.click("#locks-pages button:last-child").await;
    browser.shows("locks-pages", "51 to 100 of 1000").await;
    browser.shows("locks-rows", "lock:00099").await;
    browser.fill("locks-text", "LOCK:0043").await;
    browser.shows("locks-pages", "1 to 10 of 10").await;
    browser.shows("locks-rows", "lock:00431").await;
    // The focus stays where it is while the page looks again and again.
    browser
        .value("document.querySelector('#locks-rows tr:nth-child(2) a').focus()")
        .await;
    let asked = browser.requested.len();
    browser
        .until(
            "some looks later",
            "new Promise(done => setTimeout(() => done(true), 300))",
        )
        .await;
    assert!(browser.requested.len() > asked + 1, "the page looks again by itself");
    assert_eq!(browser.value("document.activeElement.textContent").await, "lock:00431");
    // A window that nobody sees asks for nothing.
    let hide = |hidden: bool| {
        format!(
            "Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}}); document.dispatchEvent(new Event('visibilitychange'))"
        )
    };
    let pause = "new Promise(done => setTimeout(() => done(true), 300))";
    browser.value(&hide(true)).await;
    browser.until("the last answer came", pause).await;
    let asked = browser.requested.len();
    browser.until("it would have asked", pause).await;
    assert_eq!(browser.requested.len(), asked, "{:?}", browser.requested.last());
    browser.value(&hide(false)).await;
    browser.fill("locks-text", "nothing like this").await;
    browser.shows("locks-none", "No lock matches").await;
    is_quiet(&browser, &served);
}

#[tokio::test]
#[ignore = "needs a Chromium: make browser"]
async fn a_foreign_page_reads_nothing_and_changes_nothing() {
    let server = Server::start().await;
    let mut browser = Browser::start().await;
    let (owner, _clients) = queue(&server, "a").await;
    let cli = Cli::of(&server);
    let mut served = Served::start(&cli, &["--evict"]).await;
    let token = served.token().await;
    let base = format!("http://{}", served.address);
    // A name that leads here: the browser takes this for the same origin, and gets no lock to see.
    let port = served.address.rsplit_once(':').unwrap().1;
    browser.open(&format!("http://{REBOUND}:{port}/api/locks")).await;
    let text = browser.value("document.body.innerText").await;
    assert!(
        text.as_str()
            .is_some_and(|text| text.contains("--host NAME") && !text.contains("billing")),
        "{text}"
    );
    // A page of another origin, with the token even: the browser asks first whether it may, and is refused.
    browser.open("data:text/html,<p>foreign").await;
    let body = json!({"lock": "a", "owner": owner.to_string()}).to_string();
    for asking in [
        format!("fetch('{base}/api/locks')"),
        format!(
            "fetch('{base}/api/evict', {{method: 'POST', headers: {{'Fairlock-Token': '{token}'}}, body: {}}})",
            json!(body)
        ),
    ] {
        let answer = browser
            .value(&format!("{asking}.then(() => 'answered', () => 'refused')"))
            .await;
        assert_eq!(answer, "refused", "{asking}");
    }
    // What a browser sends without a question does not count.
    let simple = format!(
        "fetch('{base}/api/evict', {{method: 'POST', mode: 'no-cors', body: {}}}).catch(() => {{}}).then(() => 'over')",
        json!(body)
    );
    assert_eq!(browser.value(&simple).await, "over");
    assert_eq!(cli.owner_of("a").await, owner.to_string());
}
