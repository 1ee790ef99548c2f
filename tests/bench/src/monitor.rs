//! Every command that a server executes, as MONITOR shows it.

use fairlock_support::server::{Server, eventually, soon};
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

    /// The lines of what was executed until now.
    pub async fn until_now(&mut self, server: &Server) -> Vec<String> {
        let mark = uuid::Uuid::new_v4().to_string();
        let mut echo = redis::cmd("ECHO");
        let _: String = echo
            .arg(&mark)
            .query_async(&mut server.redis().await)
            .await
            .expect("a reply");
        let reading = async {
            let mut lines = Vec::new();
            while let Some(line) = self.lines.next_line().await.expect("text") {
                if line.contains(&mark) {
                    return lines;
                }
                lines.push(line);
            }
            panic!("MONITOR ended");
        };
        soon("the mark", reading).await
    }

    /// Returns when the server shows its commands to nobody: showing them costs time.
    pub async fn end(self, server: &Server) {
        drop(self);
        eventually("the server has closed the monitor", async || {
            let mut list = redis::cmd("CLIENT");
            list.arg("LIST");
            let text: String = list.query_async(&mut server.redis().await).await.expect("CLIENT LIST");
            !text.contains(" cmd=monitor ")
        })
        .await;
    }
}

/// The command of a line and its arguments; `None`: a script executed it.
pub fn command(line: &str) -> Option<Vec<&str>> {
    let (head, arguments) = line.split_once(" \"")?;
    let by_client = !head.ends_with(" lua]");
    by_client.then(|| {
        arguments
            .strip_suffix('"')
            .unwrap_or(arguments)
            .split("\" \"")
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scripts_execute_is_no_command_of_a_client() {
        let line = r#"+1.5 [0 127.0.0.1:9] "EVALSHA" "0f" "1" "k" """#;
        assert_eq!(command(line), Some(vec!["EVALSHA", "0f", "1", "k", ""]));
        assert_eq!(command(r#"+1.5 [0 lua] "HMGET" "k" "mode""#), None);
        assert_eq!(command("+OK"), None);
    }
}
