//! A TCP proxy in front of a server, which can do to connections what networks do.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};

#[derive(Default)]
struct Faults {
    /// The server to which new connections lead.
    server_port: AtomicU16,
    reply_delay_ms: AtomicU64,
    /// A pause between pieces of replies.
    pace_ms: AtomicU64,
    drop_messages: AtomicBool,
    hold_replies: AtomicBool,
    /// Replies yet to be lost, each together with its connection.
    lose_replies: AtomicUsize,
    stalled: AtomicBool,
    /// So many of the connections that were made pass nothing any more.
    silenced: AtomicUsize,
    /// New connections are closed at once.
    refuses: AtomicBool,
    swallows: AtomicBool,
    refused: AtomicUsize,
    messages: AtomicUsize,
    accepted: AtomicUsize,
    connections: Mutex<Vec<AbortHandle>>,
}

pub struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn to(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let faults = Arc::new(Faults {
            server_port: AtomicU16::new(server_port),
            ..Faults::default()
        });
        let accepting = tokio::spawn({
            let faults = Arc::clone(&faults);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if faults.refuses.load(Ordering::SeqCst) {
                        faults.refused.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    let nth = faults.accepted.fetch_add(1, Ordering::SeqCst) + 1;
                    let server_port = faults.server_port.load(Ordering::SeqCst);
                    let pair = tokio::spawn(carry(client, server_port, nth, Arc::clone(&faults)));
                    faults.connections.lock().unwrap().push(pair.abort_handle());
                }
            }
        });
        Self {
            port,
            faults,
            accepting,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// New connections lead to another server; those that there are lead where they did.
    pub fn leads_to(&self, server_port: u16) {
        self.faults.server_port.store(server_port, Ordering::SeqCst);
    }

    /// Every reply and message arrives this much later.
    pub fn delay_replies(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).expect("a short delay");
        self.faults.reply_delay_ms.store(ms, Ordering::SeqCst);
    }

    /// Replies do not pass until they may again; messages do.
    pub fn hold_replies(&self, hold: bool) {
        self.faults.hold_replies.store(hold, Ordering::SeqCst);
    }

    /// Replies and messages trickle: a pause before every 64 bytes, a reply or two of acquire.
    pub fn pace(&self, pause: Duration) {
        let ms = u64::try_from(pause.as_millis()).expect("a short pause");
        self.faults.pace_ms.store(ms, Ordering::SeqCst);
    }

    /// Pub/sub messages vanish; everything else passes.
    pub fn drop_messages(&self, drop: bool) {
        self.faults.drop_messages.store(drop, Ordering::SeqCst);
    }

    /// The next replies to scripts are lost after their execution, and so are the connections that they were on.
    pub fn lose_replies(&self, n: usize) {
        self.faults.lose_replies.store(n, Ordering::SeqCst);
    }

    /// How many replies are still to be lost.
    pub fn replies_to_lose(&self) -> usize {
        self.faults.lose_replies.load(Ordering::SeqCst)
    }

    /// Nothing passes in either direction, but no connection is closed: half open.
    pub fn stall(&self, stalled: bool) {
        self.faults.stalled.store(stalled, Ordering::SeqCst);
    }

    /// Nothing ever passes again over the connections that there are.
    pub fn silence(&self) {
        self.faults.silenced.store(self.connections(), Ordering::SeqCst);
    }

    /// Whatever comes is thrown away, in both directions; no connection is closed, and new ones are accepted.
    pub fn swallow(&self, swallow: bool) {
        self.faults.swallows.store(swallow, Ordering::SeqCst);
    }

    /// New connections are closed at once; those that there are stay.
    pub fn refuse(&self, refuse: bool) {
        self.faults.refuses.store(refuse, Ordering::SeqCst);
    }

    /// Connections that were refused so far.
    pub fn refused(&self) -> usize {
        self.faults.refused.load(Ordering::SeqCst)
    }

    /// Pub/sub messages that came from the server.
    pub fn messages(&self) -> usize {
        self.faults.messages.load(Ordering::SeqCst)
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> usize {
        self.faults.accepted.load(Ordering::SeqCst)
    }

    /// Closes all connections.
    pub fn cut(&self) {
        for connection in self.faults.connections.lock().unwrap().drain(..) {
            connection.abort();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn carry(client: TcpStream, server_port: u16, nth: usize, faults: Arc<Faults>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a TCP option");
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = requests(from_client, to_server, nth, &faults) => {}
        () = replies(from_server, to_client, nth, &faults) => {}
    }
}

async fn unstalled(nth: usize, faults: &Faults) {
    while faults.stalled.load(Ordering::SeqCst) || nth <= faults.silenced.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, nth: usize, faults: &Faults) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        unstalled(nth, faults).await;
        if faults.swallows.load(Ordering::SeqCst) {
            continue;
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, nth: usize, faults: &Faults) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let reply = &buffer[..n];
        unstalled(nth, faults).await;
        if faults.swallows.load(Ordering::SeqCst) {
            continue;
        }
        if reply.starts_with(b">3\r\n$7\r\nmessage") {
            faults.messages.fetch_add(1, Ordering::SeqCst);
            if faults.drop_messages.load(Ordering::SeqCst) {
                continue;
            }
        }
        let is_message = reply.starts_with(b">");
        while !is_message && faults.hold_replies.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Scripts answer with arrays.
        if reply.starts_with(b"*") {
            let lose = faults
                .lose_replies
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            if lose.is_ok() {
                return;
            }
        }
        let delay = faults.reply_delay_ms.load(Ordering::SeqCst);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        let pace = faults.pace_ms.load(Ordering::SeqCst);
        let piece = if pace > 0 { 64 } else { reply.len() };
        for piece in reply.chunks(piece) {
            tokio::time::sleep(Duration::from_millis(pace)).await;
            if to.write_all(piece).await.is_err() {
                return;
            }
        }
    }
}
