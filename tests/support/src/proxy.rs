//! A TCP proxy in front of a server, which does to connections what networks do.
//!
//! The proxy reads what comes from the server reply by reply ([`crate::resp`]), because most faults are about one message
//! or one reply. A fault holds for all connections from the moment when a test sets it.

use crate::resp::{frame_len, is_message, is_push, is_script_reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

const CHUNK: usize = 64 * 1024;
/// How often a connection looks whether it may go on.
const LOOK: Duration = Duration::from_millis(5);
/// A throttled direction passes what fits its rate so often in a second.
const PIECES_PER_S: u64 = 25;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// In order: the peer reads the end of the stream.
    Fin,
    Rst,
}

/// What the network does to one direction.
#[derive(Default)]
struct Way {
    delay_us: AtomicU64,
    /// 0: as fast as it goes.
    bytes_per_s: AtomicU64,
    /// Everything waits up to so long besides, each piece for a time of its own.
    jitter_us: AtomicU64,
}

#[derive(Default)]
struct Faults {
    /// The server to which new connections lead.
    server_port: AtomicU16,
    /// To the server.
    there: Way,
    /// To the client.
    back: Way,
    drop_messages: AtomicBool,
    hold_replies: AtomicBool,
    /// Replies yet to be lost, each together with its connection.
    lose_replies: AtomicUsize,
    /// What new connections carry to the server arrives up to so much later, also after their client has closed them.
    late_us: AtomicU64,
    stalled: AtomicBool,
    swallows: AtomicBool,
    /// So many of the connections that were made pass nothing any more.
    silenced: AtomicUsize,
    /// New connections are closed at once.
    refuses: AtomicBool,
    refused: AtomicUsize,
    messages: AtomicUsize,
    script_replies: AtomicUsize,
    accepted: AtomicUsize,
}

/// The proxy closes all of its connections when it is dropped.
pub struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    cuts: watch::Sender<Cut>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn to(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let faults = Arc::new(Faults::default());
        faults.server_port.store(server_port, SeqCst);
        let cuts = watch::Sender::new(Cut::Fin);
        let accepting = tokio::spawn({
            let (faults, cuts) = (Arc::clone(&faults), cuts.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if faults.refuses.load(SeqCst) {
                        faults.refused.fetch_add(1, SeqCst);
                        continue;
                    }
                    let nth = faults.accepted.fetch_add(1, SeqCst) + 1;
                    tokio::spawn(carry(client, nth, Arc::clone(&faults), cuts.subscribe()));
                }
            }
        });
        Self {
            port,
            faults,
            cuts,
            accepting,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// New connections lead to another server; those that there are lead where they did.
    pub fn leads_to(&self, server_port: u16) {
        self.faults.server_port.store(server_port, SeqCst);
    }

    /// Everything arrives this much later, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.faults.there.delay(delay);
        self.faults.back.delay(delay);
    }

    /// Every reply and message arrives this much later.
    pub fn delay_replies(&self, delay: Duration) {
        self.faults.back.delay(delay);
    }

    /// Everything trickles in both directions. 0: no limit.
    pub fn throttle(&self, bytes_per_s: u64) {
        self.faults.there.bytes_per_s.store(bytes_per_s, SeqCst);
        self.throttle_replies(bytes_per_s);
    }

    /// Replies and messages trickle. 0: no limit.
    pub fn throttle_replies(&self, bytes_per_s: u64) {
        self.faults.back.bytes_per_s.store(bytes_per_s, SeqCst);
    }

    /// Connections that are made from now on overtake each other: what a client sends over one of them arrives up to so
    /// much later, each piece after a time of its own, and even if the client has closed the connection meanwhile. What
    /// the server sends arrives as late, over all connections. Within a connection the order stays, as TCP has it.
    pub fn reorder(&self, most: Duration) {
        let us = micros(most);
        self.faults.late_us.store(us, SeqCst);
        self.faults.back.jitter_us.store(us, SeqCst);
    }

    /// Replies do not pass until they may again; messages do.
    pub fn hold_replies(&self, hold: bool) {
        self.faults.hold_replies.store(hold, SeqCst);
    }

    /// Pub/sub messages vanish; everything else passes.
    pub fn drop_messages(&self, drop: bool) {
        self.faults.drop_messages.store(drop, SeqCst);
    }

    /// The next replies to scripts are lost after their execution, and so are the connections that they were on.
    pub fn lose_replies(&self, n: usize) {
        self.faults.lose_replies.store(n, SeqCst);
    }

    /// How many replies are still to be lost.
    pub fn replies_to_lose(&self) -> usize {
        self.faults.lose_replies.load(SeqCst)
    }

    /// Nothing passes in either direction, but no connection is closed: half open.
    pub fn stall(&self, stalled: bool) {
        self.faults.stalled.store(stalled, SeqCst);
    }

    /// Nothing ever passes again over the connections that there are.
    pub fn silence(&self) {
        self.silence_first(self.connections());
    }

    /// The same for so many connections only, the oldest ones.
    pub fn silence_first(&self, n: usize) {
        self.faults.silenced.store(n, SeqCst);
    }

    /// The proxy reads whatever comes and passes nothing on, in both directions; no connection is closed, and new ones
    /// are accepted. A direction that has lost bytes stays silent for good: TCP delivers no stream with a hole in it, and
    /// a client that got one would take each reply for the answer to the call before.
    pub fn swallow(&self, swallow: bool) {
        self.faults.swallows.store(swallow, SeqCst);
    }

    /// New connections are closed at once; those that there are stay.
    pub fn refuse(&self, refuse: bool) {
        self.faults.refuses.store(refuse, SeqCst);
    }

    /// Connections that were refused so far.
    pub fn refused(&self) -> usize {
        self.faults.refused.load(SeqCst)
    }

    /// Pub/sub messages that came from the server.
    pub fn messages(&self) -> usize {
        self.faults.messages.load(SeqCst)
    }

    /// Replies to scripts that came from the server.
    pub fn script_replies(&self) -> usize {
        self.faults.script_replies.load(SeqCst)
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> usize {
        self.faults.accepted.load(SeqCst)
    }

    /// There are connections now.
    pub fn is_used(&self) -> bool {
        self.cuts.receiver_count() > 0
    }

    /// Closes all connections in order.
    pub fn cut(&self) {
        self.end(Cut::Fin);
    }

    /// Ends all connections.
    pub fn end(&self, how: Cut) {
        self.cuts.send_replace(how);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn carry(client: TcpStream, nth: usize, faults: Arc<Faults>, mut cuts: watch::Receiver<Cut>) {
    let server = tokio::select! {
        server = TcpStream::connect(("127.0.0.1", faults.server_port.load(SeqCst))) => server,
        how = cut(&mut cuts) => {
            if how == Cut::Rst {
                // A connection that is gone already needs no reset.
                let _ = client.set_zero_linger();
            }
            return;
        }
    };
    let Ok(server) = server else { return };
    for stream in [&client, &server] {
        // A peer that is gone already makes this fail; what follows sees that too.
        let _ = stream.set_nodelay(true);
    }
    let (from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    if faults.late_us.load(SeqCst) > 0 {
        // Whatever ends the connection, what was read goes on its way.
        tokio::select! {
            () = late_requests(from_client, to_server, &faults) => {}
            () = replies(from_server, &mut to_client, nth, &faults) => {}
            _ = cut(&mut cuts) => {}
        }
        return;
    }
    let how = tokio::select! {
        () = requests(from_client, &mut to_server, nth, &faults) => Cut::Fin,
        () = replies(from_server, &mut to_client, nth, &faults) => Cut::Fin,
        how = cut(&mut cuts) => how,
    };
    if how == Cut::Rst {
        for half in [to_client, to_server] {
            let _ = half.as_ref().set_zero_linger();
            // Dropped otherwise, the half ends the stream in order first.
            half.forget();
        }
    }
}

async fn cut(cuts: &mut watch::Receiver<Cut>) -> Cut {
    // An error is the end of the proxy.
    cuts.changed().await.map_or(Cut::Fin, |()| *cuts.borrow())
}

impl Faults {
    /// What is under way waits while nothing passes. Says whether the direction is whole: whether it has lost nothing.
    async fn passes(&self, nth: usize, is_whole: &mut bool) -> bool {
        while self.stalled.load(SeqCst) || nth <= self.silenced.load(SeqCst) {
            sleep(LOOK).await;
        }
        *is_whole &= !self.swallows.load(SeqCst);
        *is_whole
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).expect("less than half a million years")
}

impl Way {
    fn delay(&self, delay: Duration) {
        self.delay_us.store(micros(delay), SeqCst);
    }

    /// Says whether the other end still takes it.
    async fn send(&self, bytes: &[u8], to: &mut OwnedWriteHalf) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let delay_us = self.delay_us.load(SeqCst) + fastrand::u64(..=self.jitter_us.load(SeqCst));
        if delay_us > 0 {
            sleep(Duration::from_micros(delay_us)).await;
        }
        let rate = self.bytes_per_s.load(SeqCst);
        if rate == 0 {
            return to.write_all(bytes).await.is_ok();
        }
        let piece = usize::try_from((rate / PIECES_PER_S).max(1)).expect("a rate of this machine");
        for piece in bytes.chunks(piece) {
            sleep(Duration::from_micros(piece.len() as u64 * 1_000_000 / rate)).await;
            if to.write_all(piece).await.is_err() {
                return false;
            }
        }
        true
    }
}

async fn requests(mut from: OwnedReadHalf, to: &mut OwnedWriteHalf, nth: usize, faults: &Faults) {
    let (mut buffer, mut is_whole) = (vec![0; CHUNK], true);
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if faults.passes(nth, &mut is_whole).await && !faults.there.send(&buffer[..n], to).await {
            return;
        }
    }
}

/// A task of its own writes, so that what it was given arrives although the connection ends. The server sees its end then.
async fn late_requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, faults: &Faults) {
    let (sent, mut under_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, bytes)) = under_way.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; CHUNK];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let late_us = fastrand::u64(..=faults.late_us.load(SeqCst));
        let due = Instant::now() + Duration::from_micros(late_us);
        if sent.send((due, buffer[..n].to_vec())).is_err() {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, to: &mut OwnedWriteHalf, nth: usize, faults: &Faults) {
    let (mut buffer, mut is_whole) = (Vec::with_capacity(CHUNK), true);
    while let Ok(1..) = from.read_buf(&mut buffer).await {
        if !faults.passes(nth, &mut is_whole).await {
            buffer.clear();
            continue;
        }
        let (mut passing, mut at, mut is_lost) = (Vec::with_capacity(buffer.len()), 0, false);
        while !is_lost && let Some(len) = frame_len(&buffer[at..]) {
            let frame = &buffer[at..at + len];
            at += len;
            if faults.holds(frame) {
                // A message before a reply that is held does not wait for it.
                if !faults.back.send(&passing, to).await {
                    return;
                }
                passing.clear();
                while faults.holds(frame) {
                    sleep(LOOK).await;
                }
            }
            match faults.fate(frame) {
                Fate::Passes => passing.extend_from_slice(frame),
                Fate::Vanishes => {}
                Fate::IsLost => is_lost = true,
            }
        }
        buffer.drain(..at);
        if !faults.back.send(&passing, to).await || is_lost {
            return;
        }
    }
}

/// What becomes of a message or a reply.
enum Fate {
    Passes,
    Vanishes,
    /// Its connection ends too.
    IsLost,
}

impl Faults {
    fn holds(&self, frame: &[u8]) -> bool {
        !is_push(frame) && self.hold_replies.load(SeqCst)
    }

    fn fate(&self, frame: &[u8]) -> Fate {
        if is_message(frame) {
            self.messages.fetch_add(1, SeqCst);
            if self.drop_messages.load(SeqCst) {
                return Fate::Vanishes;
            }
        }
        let lose = || self.lose_replies.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
        if !is_script_reply(frame) {
            return Fate::Passes;
        }
        self.script_replies.fetch_add(1, SeqCst);
        match lose() {
            Ok(_) => Fate::IsLost,
            Err(_) => Fate::Passes,
        }
    }
}

#[cfg(test)]
mod tests;
