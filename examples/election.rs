//! An election: of three candidates one leads. An observer sees each change, and a vacancy.
//!
//! Run it with `cargo run --example election`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Leader, Leaders};
use std::sync::Arc;
use tokio::sync::Semaphore;

const NAME: &str = "example:leader";

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let observing = Client::connect(server.url()).await?;
    let mut leaders = observing.election(NAME).observe().await?;
    assert_eq!(next(&mut leaders).await?, None);
    println!("nobody leads");

    // Three replicas of a service. Each would be a process. A term lasts until the observer has seen it.
    let seen = Arc::new(Semaphore::new(0));
    let mut replicas = Vec::new();
    for label in ["red", "green", "blue"] {
        let client = Client::builder().label(label).connect(server.url()).await?;
        let (election, seen) = (client.election(NAME), Arc::clone(&seen));
        let before = replicas.len();
        replicas.push(tokio::spawn(async move {
            let leading = election.campaign().await?;
            let job = async { seen.acquire().await.map(|permit| permit.forget()) };
            // The job is dropped if the term is lost.
            let done = leading.while_leading(job).await?;
            assert!(done.is_ok());
            leading.resign().await
        }));
        // So that they campaign in this order.
        match before {
            0 => assert_eq!(name(&next(&mut leaders).await?), Some("red")),
            _ => server.until_queued(NAME, before).await?,
        }
    }
    let first = observing.election(NAME).leader().await?;
    assert_eq!(name(&first), Some("red"));
    println!("red leads, green and blue wait");

    let mut last = first;
    loop {
        seen.add_permits(1);
        let leader = next(&mut leaders).await?;
        match name(&leader) {
            Some(name) => println!("{name} leads"),
            None => break,
        }
        assert!(leader.as_ref().map(|leader| leader.term) > last.map(|leader| leader.term));
        last = leader;
    }
    assert_eq!(name(&last), Some("blue"));
    println!("all three have led, one after the other, and nobody leads");
    for replica in replicas {
        replica.await??;
    }
    Ok(())
}

async fn next(leaders: &mut Leaders) -> Result<Option<Leader>, fairlock::Error> {
    leaders.next().await.expect("it ends with the client")
}

fn name(leader: &Option<Leader>) -> Option<&str> {
    leader.as_ref()?.client.label.as_deref()
}
