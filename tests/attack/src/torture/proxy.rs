//! What stands between a worker and the server: it can do to connections what networks do.

use super::resp::{frame_len, is_message, is_script_reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

const CHUNK: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// In order: the peer reads the end of the stream.
    Fin,
    Rst,
}

#[derive(Default)]
struct Faults {
    delay_us: AtomicU64,
    /// 0: as fast as it goes.
    bytes_per_s: AtomicU64,
    stalled: AtomicBool,
    drop_messages: AtomicBool,
    /// Replies yet to be lost, each together with its connection.
    lose_replies: AtomicU64,
}

/// Dropped, it closes all of its connections.
pub struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    cuts: watch::Sender<Option<Cut>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn to(server_port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let faults = Arc::new(Faults::default());
        let cuts = watch::Sender::new(None);
        let accepting = tokio::spawn({
            let (faults, cuts) = (Arc::clone(&faults), cuts.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let carried = carry(client, server_port, Arc::clone(&faults), cuts.subscribe());
                    tokio::spawn(carried);
                }
            }
        });
        Ok(Self {
            port,
            faults,
            cuts,
            accepting,
        })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Everything arrives this much later, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.faults.delay_us.store(delay.as_micros() as u64, Relaxed);
    }

    /// 0: no limit.
    pub fn throttle(&self, bytes_per_s: u64) {
        self.faults.bytes_per_s.store(bytes_per_s, Relaxed);
    }

    /// Nothing passes in either direction, but no connection is closed: half open.
    pub fn stall(&self, stalled: bool) {
        self.faults.stalled.store(stalled, Relaxed);
    }

    pub fn drop_messages(&self, drop: bool) {
        self.faults.drop_messages.store(drop, Relaxed);
    }

    /// The next replies to scripts are lost after their execution, and so are the connections that they were on.
    pub fn lose_replies(&self, n: u64) {
        self.faults.lose_replies.store(n, Relaxed);
    }

    /// Closes all connections that there are.
    pub fn cut(&self, how: Cut) {
        self.cuts.send_replace(Some(how));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut(Cut::Fin);
    }
}

async fn carry(client: TcpStream, server_port: u16, faults: Arc<Faults>, mut cuts: watch::Receiver<Option<Cut>>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await else {
        return;
    };
    for stream in [&client, &server] {
        // An optimisation.
        let _ = stream.set_nodelay(true);
    }
    let (from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let how = tokio::select! {
        () = requests(from_client, &mut to_server, &faults) => Cut::Fin,
        () = replies(from_server, &mut to_client, &faults) => Cut::Fin,
        how = cuts.changed() => how.ok().and_then(|()| *cuts.borrow()).unwrap_or(Cut::Fin),
    };
    if how == Cut::Rst {
        for half in [&to_client, &to_server] {
            // One that is gone already needs no reset.
            let _ = half.as_ref().set_zero_linger();
        }
    }
}

/// What the network does to so many bytes before they arrive.
async fn travel(faults: &Faults, bytes: usize) {
    while faults.stalled.load(Relaxed) {
        sleep(Duration::from_millis(5)).await;
    }
    let delay_us = faults.delay_us.load(Relaxed);
    let rate = faults.bytes_per_s.load(Relaxed);
    let sent_us = (bytes as u64 * 1_000_000).checked_div(rate).unwrap_or(0);
    if delay_us + sent_us > 0 {
        sleep(Duration::from_micros(delay_us + sent_us)).await;
    }
}

async fn requests(mut from: OwnedReadHalf, to: &mut OwnedWriteHalf, faults: &Faults) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        travel(faults, n).await;
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, to: &mut OwnedWriteHalf, faults: &Faults) {
    let mut buffer = Vec::with_capacity(CHUNK);
    while let Ok(1..) = from.read_buf(&mut buffer).await {
        let mut passing = Vec::with_capacity(buffer.len());
        let mut at = 0;
        while at < buffer.len()
            && let Some(len) = frame_len(&buffer[at..])
        {
            let frame = &buffer[at..at + len];
            at += len;
            if is_script_reply(frame) && take_one(&faults.lose_replies) {
                return;
            }
            if !(is_message(frame) && faults.drop_messages.load(Relaxed)) {
                passing.extend_from_slice(frame);
            }
        }
        buffer.drain(..at);
        travel(faults, passing.len()).await;
        if to.write_all(&passing).await.is_err() {
            return;
        }
    }
}

fn take_one(count: &AtomicU64) -> bool {
    count.load(Relaxed) > 0 && count.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok()
}
