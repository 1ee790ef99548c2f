//! A small process that waits for a lock, enters, leaves, and ends when its parent closes its input.

use super::LEASE;
use crate::Failure;
use fairlock::Client;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[arg(long)]
    url: String,
}

pub fn run(args: &Args) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let work = async {
        let client = loop {
            match Client::builder().lease(LEASE).connect(args.url.as_str()).await {
                Ok(client) => break client,
                // A busy machine's: the server is up.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        client.rw_lock("a").write().acquire_fair().await?.release().await?;
        // Stays connected until its parent has counted.
        tokio::task::spawn_blocking(|| std::io::stdin().lines().for_each(drop)).await?;
        client.shutdown().await;
        Ok::<_, Failure>(())
    };
    match runtime
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(work))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scale-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(super) fn start(url: &str) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["scale-worker", "--url", url])
        .stdin(Stdio::piped())
        .spawn()
}

/// What no other process shares.
pub(super) fn private_bytes(child: &Child) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", child.id())).unwrap_or_default();
    let kb = text.lines().filter(|line| line.starts_with("Private_"));
    let kb = kb.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kb.sum::<u64>() * 1024
}

/// Lets all end, and says how many did not end well.
pub(super) async fn end(mut fleet: Vec<Child>) -> Result<usize, Failure> {
    fleet.iter_mut().for_each(|child| drop(child.stdin.take()));
    let ended = tokio::task::spawn_blocking(move || {
        let wait = |child: &mut Child| child.wait().is_ok_and(|status| status.success());
        fleet
            .iter_mut()
            .filter_map(|child| (!wait(child)).then_some(()))
            .count()
    });
    Ok(ended.await?)
}
