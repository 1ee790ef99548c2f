//! `fairlock elect` and `fairlock leader`

use crate::command::{Cli, ended, said};
use crate::scene::{LONG, client};
use fairlock_support::server::{Server, soon};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

fn lines(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().expect("a pipe")).lines()
}

async fn line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    soon("a line", lines.next_line()).await.unwrap().expect("a line")
}

#[tokio::test]
async fn a_leader_that_is_evicted_ends_its_command_and_leads_again_until_a_signal_comes() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server, "operator").await);
    let none = cli.run(&["leader", "a"]).await;
    assert_eq!((none.status, none.stdout.as_str()), (1, "a: nobody leads\n"));
    let options = ["elect", "--lease", "600s", "--label", "one", "a", "--"];
    let command = ["sh", "-c", "echo $FAIRLOCK_NAME $FAIRLOCK_TOKEN; exec sleep 600"];
    let mut child = cli.command(&[&options[..], &command].concat()).spawn().unwrap();
    let mut told = lines(&mut child);
    let first = line(&mut told).await;
    let leader = client.election("a").leader().await.unwrap().expect("a leader");
    assert_eq!(first, format!("a {}", leader.term));
    let shown = cli.run(&["leader", "a", "--json"]).await;
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["leader"]["client"]["label"], "one");

    assert_eq!(client.rw_lock("a").evict(&leader.owner).await.unwrap(), 1);
    let second = line(&mut told).await;
    assert_ne!(second, first, "a new term");
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(ended(child).await.status, 128 + 15);
    assert_eq!(client.election("a").leader().await.unwrap(), None);
}

#[tokio::test]
async fn a_leader_outlasts_an_outage_and_leads_again() {
    let mut server = Server::start().await;
    let options = ["elect", "--lease", "2s", "a", "--"];
    let command = ["sh", "-c", "echo $FAIRLOCK_TOKEN; exec sleep 600"];
    let mut child = Cli::of(&server)
        .command(&[&options[..], &command].concat())
        .spawn()
        .unwrap();
    let mut told = lines(&mut child);
    let first = line(&mut told).await;
    let mut complaints = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    server.kill();
    // The first complaint is about the term, the later ones are about the campaigns.
    loop {
        let complaint = soon("a complaint", complaints.next_line()).await.unwrap();
        if complaint.expect("it campaigns on").contains("did not answer") {
            break;
        }
    }
    server.start_again().await;
    assert_ne!(line(&mut told).await, first, "a new term");
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(ended(child).await.status, 128 + 15);
}

#[tokio::test]
async fn a_command_that_ends_by_itself_resigns_and_an_observer_sees_both() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let mut watching = cli.command(&["leader", "--watch", "a"]).spawn().unwrap();
    let mut seen = lines(&mut watching);
    assert_eq!(line(&mut seen).await, "a: nobody leads");
    // It leads until the test lets it go.
    let mut child = cli.command(&["elect", "--label", "one", "a", "--", "sh", "-c", "read x; exit 3"]);
    let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let leads = line(&mut seen).await;
    assert!(
        leads.starts_with("a: one ") && leads.contains(" leads since "),
        "{leads}"
    );
    drop(child.stdin.take());
    assert_eq!(ended(child).await.status, 3);
    assert_eq!(line(&mut seen).await, "a: nobody leads");
}

#[tokio::test]
async fn a_candidate_that_is_evicted_while_it_waits_campaigns_again() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server, "leader").await);
    let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
    let options = ["elect", "--lease", "600s", "--label", "one", "a", "--"];
    let mut child = cli
        .command(&[&options[..], &["echo", "it leads"]].concat())
        .spawn()
        .unwrap();
    let mut told = lines(&mut child);
    let mut complaints = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    server.until_queued("a", 1).await;
    let owner = async || Some(client.rw_lock("a").status().await.unwrap().waiters.first()?.owner);
    let first = owner().await.expect("a candidate");
    assert_eq!(client.rw_lock("a").evict(&first).await.unwrap(), 1);
    let complaint = soon("a complaint", complaints.next_line()).await.unwrap();
    let complaint = complaint.expect("it campaigns on");
    assert!(
        said(&complaint, &["a: ", "evicted", "campaigning again"]),
        "{complaint}"
    );
    server.until_queued("a", 1).await;
    guard.release().await.unwrap();
    assert_eq!(line(&mut told).await, "it leads");
    assert_eq!(ended(child).await.status, 0);
}

/// The server evicts a candidate and says no more, so that the next campaign has no answer.
#[tokio::test]
async fn a_candidate_that_never_led_outlasts_an_outage_too() {
    let mut server = Server::start().await;
    let client = client(&server, "leader").await;
    let _guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
    let options = [
        "elect", "--lease", "2s", "--label", "one", "a", "--", "echo", "it leads",
    ];
    let mut child = Cli::of(&server).command(&options).spawn().unwrap();
    let mut told = lines(&mut child);
    let mut complaints = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    server.until_queued("a", 1).await;
    let evict = concat!(
        include_str!("../../../lua/lock.lua"),
        include_str!("../../../lua/evict.lua")
    );
    let mut redis = server.redis().await;
    let mut first = redis::cmd("ZRANGE");
    let waits: Vec<String> = first
        .arg("fairlock:{a}:q")
        .arg(0)
        .arg(0)
        .query_async(&mut redis)
        .await
        .unwrap();
    let mut evict_and_pause = redis::pipe();
    evict_and_pause.atomic().cmd("EVAL").arg(evict).arg(3);
    evict_and_pause
        .arg("fairlock:{a}")
        .arg("fairlock:{a}:q")
        .arg("fairlock:{a}:l");
    evict_and_pause.arg("").arg(&waits[0][1..]);
    evict_and_pause
        .cmd("CLIENT")
        .arg("PAUSE")
        .arg(LONG.as_millis() as u64)
        .arg("ALL");
    evict_and_pause.exec_async(&mut redis).await.unwrap();
    loop {
        let complaint = soon("a complaint", complaints.next_line()).await.unwrap();
        if complaint.expect("it campaigns on").contains("did not answer") {
            break;
        }
    }
    server.kill();
    server.start_again().await;
    assert_eq!(line(&mut told).await, "it leads");
    assert_eq!(ended(child).await.status, 0);
}
