//! A proxy that swallows: during a silence it reads whatever comes, and passes nothing on, then or later.
//!
//! A direction of a connection that has lost bytes stays silent for good. TCP delivers no stream with a hole in it, and a
//! client that got one would take each reply for the answer to the call before.

use super::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub struct Proxy {
    port: u16,
    swallows: Arc<AtomicBool>,
    /// Dropped, it ends all connections.
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub async fn to(server_port: u16) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let swallows = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let swallows = Arc::clone(&swallows);
            async move {
                let mut carried = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    carried.spawn(carry(client, server_port, Arc::clone(&swallows)));
                }
            }
        });
        Ok(Self {
            port,
            swallows,
            _tasks: tasks,
        })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn swallow(&self, swallows: bool) {
        self.swallows.store(swallows, Ordering::SeqCst);
    }
}

async fn carry(client: TcpStream, server_port: u16, swallows: Arc<AtomicBool>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await else {
        return;
    };
    for stream in [&client, &server] {
        if let Err(error) = stream.set_nodelay(true) {
            eprintln!("outages: a TCP option: {error}");
        }
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pass(from_client, to_server, &swallows) => {}
        () = pass(from_server, to_client, &swallows) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, swallows: &AtomicBool) {
    let (mut buffer, mut has_hole) = (vec![0; 16 * 1024], false);
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        has_hole |= swallows.load(Ordering::SeqCst);
        if !has_hole && to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}
