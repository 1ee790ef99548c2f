//! MONITOR: every command that a server executes, those of scripts included.

use fairlock_support::server::{Server, soon};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

pub struct Monitor {
    lines: Lines<BufReader<TcpStream>>,
}

impl Monitor {
    pub async fn start(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port()))
            .await
            .expect("the server answers");
        let mut stream = BufReader::new(stream);
        stream.write_all(b"MONITOR\r\n").await.expect("the server listens");
        let mut lines = stream.lines();
        assert_eq!(lines.next_line().await.expect("text").as_deref(), Some("+OK"));
        Self { lines }
    }

    /// Hands over a line for each command that was executed until now.
    pub async fn end(&mut self, server: &Server, mut on_line: impl FnMut(&str)) {
        let mark = uuid::Uuid::new_v4().to_string();
        let mut echo = redis::cmd("ECHO");
        let _: String = echo
            .arg(&mark)
            .query_async(&mut server.redis().await)
            .await
            .expect("a reply");
        let reading = async {
            while let Some(line) = self.lines.next_line().await.expect("text") {
                if line.contains(&mark) {
                    return;
                }
                on_line(&line);
            }
            panic!("MONITOR ended");
        };
        soon("the mark", reading).await;
    }
}
