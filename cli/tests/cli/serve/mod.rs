//! `fairlock serve`: what it answers, to whom, and what that costs the server. `slow/browser.rs` opens its page.

mod access;
#[cfg(feature = "cluster")]
mod cluster;
mod crowd;
mod locks;
mod quorum;
mod time;

use crate::command::Cli;
use fairlock_support::server::soon;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr};

/// How often a look may be late.
const TRIES: usize = 6;

/// A running `fairlock serve`.
pub struct Served {
    pub child: Child,
    pub stderr: Lines<BufReader<ChildStderr>>,
    /// `127.0.0.1:PORT`
    pub address: String,
}

/// An answer, its head in small letters.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A stream of events that is being read.
pub struct Stream(pub BufReader<TcpStream>);

impl Stream {
    /// The next event that this is true of.
    pub async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let reading = async {
            loop {
                let mut line = String::new();
                let read = self.0.read_line(&mut line).await.expect("a line of events");
                assert!(read > 0, "the stream ended");
                let Some(event) = line.strip_prefix("data: ") else {
                    continue;
                };
                let event: Value = serde_json::from_str(event).expect("JSON");
                if wanted(&event) {
                    return event;
                }
            }
        };
        soon("an event", reading).await
    }
}

impl Served {
    pub async fn start(cli: &Cli, arguments: &[&str]) -> Self {
        Self::start_with(cli, arguments, &[]).await
    }

    pub async fn start_with(cli: &Cli, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let listen: &[&str] = match arguments.contains(&"--listen") {
            true => &["serve"],
            false => &["serve", "--listen", "127.0.0.1:0"],
        };
        let arguments = [listen, arguments].concat();
        let mut said = String::new();
        // A busy machine may be late with the first look at thousands of locks, and then the command ends.
        for _ in 0..TRIES {
            let mut command = cli.command(&arguments);
            let mut child = command.envs(variables.iter().copied()).spawn().unwrap();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            let mut stderr = BufReader::new(child.stderr.take().unwrap());
            let mut line = String::new();
            soon("its address", stdout.read_line(&mut line)).await.unwrap();
            let address = line.trim().strip_prefix("http://");
            if let Some(address) = address.and_then(|address| address.strip_suffix('/')) {
                let (stderr, address) = (stderr.lines(), address.to_owned());
                return Self { child, stderr, address };
            }
            soon("why", stderr.read_to_string(&mut said)).await.unwrap();
            if !said.contains("timed out") {
                break;
            }
        }
        panic!("no address: {said}");
    }

    /// Sends these bytes and reads what comes until the connection ends.
    pub async fn raw(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        soon("the answer", stream.read_to_end(&mut bytes)).await.unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Answer {
            status: status.expect("a status"),
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    pub async fn asked(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let host = &self.address;
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n");
        self.raw(&format!("{head}{headers}\r\n{body}")).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.asked("GET", path, "", "").await
    }

    /// The document, if it is there.
    pub async fn document(&self, path: &str) -> Value {
        let mut answer = self.get(path).await;
        for _ in 1..TRIES {
            // As at the start.
            if answer.status == 502 && answer.body.contains("timed out") {
                answer = self.get(path).await;
            }
        }
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    pub async fn evict(&self, token: Option<&str>, lock: &str, owner: &str) -> Answer {
        let header = token.map(|token| format!("Fairlock-Token: {token}\r\n"));
        let body = json!({"lock": lock, "owner": owner}).to_string();
        self.asked("POST", "/api/evict", &header.unwrap_or_default(), &body)
            .await
    }

    pub async fn events(&self, query: &str) -> Stream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request = format!("GET /api/events?{query} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            soon("its head", stream.read_line(&mut line)).await.unwrap();
        }
        Stream(stream)
    }

    /// The next line that it says beside its address.
    pub async fn says(&mut self) -> String {
        soon("a word", self.stderr.next_line()).await.unwrap().expect("a line")
    }

    pub async fn token(&mut self) -> String {
        let line = self.says().await;
        line.strip_prefix("fairlock: evictions need this token: ")
            .expect("a token")
            .to_owned()
    }
}

/// As a query has it.
pub fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
