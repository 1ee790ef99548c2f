//! Contenders for one lock that hold it for no time: how many enter per second.

use crate::clock;
use crate::peers::{Kind, Locks};
use crate::worker::Line;
use std::sync::Arc;
use std::time::Duration;

/// Before it is counted, so that all are there.
pub const LEAD: Duration = Duration::from_millis(10);

/// How many enter between two times of [`clock::now`], by tasks that begin now.
pub async fn grants(locks: &Locks, name: &str, tasks: usize, from: f64, until: f64) -> usize {
    let contender = || {
        let lock = Arc::new(locks.mutex(name));
        move || {
            let lock = Arc::clone(&lock);
            async move {
                let held = lock.acquire().await;
                let now = clock::now();
                held.release().await;
                now
            }
        }
    };
    count(contender, tasks, from, until).await
}

/// The same of contenders that enter and leave again and again, and say when they were inside.
pub async fn count<T, Turn>(contender: impl Fn() -> T, tasks: usize, from: f64, until: f64) -> usize
where
    T: FnMut() -> Turn + Send + 'static,
    Turn: Future<Output = f64> + Send,
{
    let contender = |_| {
        let mut turn = contender();
        tokio::spawn(async move {
            let mut grants = 0;
            loop {
                let now = turn().await;
                if now >= until {
                    return grants;
                }
                grants += usize::from(now >= from);
            }
        })
    };
    let running: Vec<_> = (0..tasks).map(contender).collect();
    let mut sum = 0;
    for task in running {
        sum += task.await.expect("a contender");
    }
    sum
}

/// The next span that is counted.
pub fn span(length: Duration) -> (f64, f64) {
    let from = clock::now() + LEAD.as_secs_f64() * 1e6;
    (from, from + length.as_secs_f64() * 1e6)
}

/// One contender in a process of its own. Each line has the lock's kind and name, and the span.
pub async fn worker(url: &str, line: &mut Line) {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        all.push((kind, Locks::connect(kind, url).await));
    }
    line.say("ready").await;
    while let Some(job) = line.hear().await {
        let words: Vec<&str> = job.split(' ').collect();
        let &[kind, name, from, until] = words.as_slice() else {
            panic!("{job}")
        };
        let kind = Kind::of_name(kind).expect("a kind");
        let (_, locks) = all.iter().find(|(of, _)| *of == kind).expect("one of each");
        let (from, until) = (from.parse().expect("a time"), until.parse().expect("a time"));
        let grants = grants(locks, name, 1, from, until).await;
        line.say(&grants.to_string()).await;
    }
}
