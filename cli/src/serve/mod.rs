//! `fairlock serve`: a page for the browser.
//!
//! * `mod.rs` accepts connections, and `wire.rs` ends those that read nothing.
//! * `http.rs` decides who may ask, and `api.rs` answers.
//! * `look.rs` reads the locks, `feed.rs` the events; `history.rs` and `blame.rs` make the rest of these two.
//! * `page/` is what the browser gets, as it is. It needs no build step, and nothing from anywhere else.

mod api;
mod blame;
mod feed;
mod history;
mod http;
mod look;
mod wire;

use crate::args::ServeArgs;
use crate::locks::Eye;
use crate::outcome::{Failure, Outcome, Status, complain, say};
use crate::quorum::Target;
use crate::text::safe;
use crate::watch::interrupted;
use api::Site;
use feed::Feed;
use futures::stream::{FuturesUnordered, StreamExt as _};
use http::{Door, Token};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use look::Looks;
use std::convert::Infallible;
use std::env::VarError;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use wire::Wire;

/// How many connections are served at a time; further ones wait to be accepted.
const CONNECTIONS: usize = 128;
/// How long a browser may take to send a request's head, also the next one of a connection.
const HEAD: Duration = Duration::from_secs(10);
/// How large a request's head may be.
const HEAD_BYTES: usize = 16 * 1024;

pub(crate) async fn run(target: &Target, args: &ServeArgs) -> Outcome {
    let (token, is_ours) = match args.evict {
        true => token()?,
        false => (None, false),
    };
    let looks = Looks::begin(target, args.interval).await?;
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.map_err(|error| cannot_listen(args.listen, &error))?;
    let address = listener
        .local_addr()
        .map_err(|error| cannot_listen(args.listen, &error))?;
    let site = Site {
        door: Door {
            hosts: args.host.clone(),
            token,
        },
        events: Feed::scope(looks.eye()).await,
        feed: Feed::new(),
        target,
        interval: args.interval,
        looks,
    };
    // Before the first message: after it others may send a signal.
    let interrupted = interrupted(false);
    warn(address, args);
    if let (Some(token), true) = (&site.door.token, is_ours) {
        complain(&format!("evictions need this token: {}", token.shown()));
    }
    say(&format!("http://{}/\n", to_open(address)))?;
    let events = async {
        match site.looks.eye() {
            Eye::One { client, .. } if site.events == "all" => site.feed.run(&site.looks, client).await,
            _ => std::future::pending().await,
        }
    };
    let signal = tokio::select! {
        signal = interrupted => signal,
        never = events => match never {},
        never = accept(&listener, &site) => match never {},
    };
    site.looks.eye().shutdown().await;
    Err(Failure::signal(signal))
}

/// The token that evictions need, and whether this process made it up.
fn token() -> Result<(Option<Token>, bool), Failure> {
    const VARIABLE: &str = "FAIRLOCK_SERVE_TOKEN";
    match std::env::var(VARIABLE) {
        Ok(token) if token.len() < Token::SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            let what = format!("the token in {VARIABLE} cannot be used");
            let remedy = format!("use {} or more letters, digits and signs of ASCII", Token::SHORTEST);
            Err(Failure::usage(format!(
                "{what}: {remedy}, or unset it to get a random one"
            )))
        }
        Ok(token) => Ok((Some(Token::new(token)), false)),
        Err(VarError::NotPresent) => Ok((Some(Token::random()), true)),
        Err(VarError::NotUnicode(_)) => Err(Failure::usage(format!("the token in {VARIABLE} is not UTF-8"))),
    }
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Failure {
    let message = format!("cannot listen on {address}: {error}; choose another address by --listen");
    Failure::new(Status::UNAVAILABLE, message)
}

/// An address that a browser of this host can open. Nothing answers to 0.0.0.0 as a host.
fn to_open(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

fn warn(address: SocketAddr, args: &ServeArgs) {
    if address.ip().is_loopback() {
        return;
    }
    complain(&format!(
        "warning: whoever reaches {address} sees the names of locks, owners, hosts and processes, because the page has \
         no login and no TLS; put a proxy with both in front of it, or listen on 127.0.0.1 and use ssh -L"
    ));
    if args.evict {
        complain("warning: the token for evictions crosses the network as it is");
    }
    if address.ip().is_unspecified() && args.host.is_empty() {
        complain("browsers must use an address of this host as the page's host; allow names by --host");
    }
}

/// Serves connections for ever. A connection ends when this future is dropped.
async fn accept(listener: &TcpListener, site: &Site<'_>) -> Infallible {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, peer)) => connections.push(serve(stream, peer, site)),
                // The system may be out of descriptors for a moment.
                Err(_) => sleep(Duration::from_millis(50)).await,
            },
            Some(()) = connections.next() => {}
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, site: &Site<'_>) {
    let Ok(local) = stream.local_addr() else { return };
    let service =
        hyper::service::service_fn(async |request| Ok::<_, Infallible>(site.respond(request, local, peer).await));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(Wire::new(stream)), service);
    // A browser that goes away is no news.
    let _ = connection.await;
}

impl Site<'_> {
    /// The record of who evicted whom.
    fn record(&self, lock: &str, owner: &str, requests: usize, peer: SocketAddr) {
        let lock = safe(lock);
        complain(&format!("{peer} evicted {owner} from {lock}: {requests} requests"));
    }
}
