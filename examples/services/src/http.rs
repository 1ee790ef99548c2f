//! As much of an HTTP client as a load generator needs.

use std::error::Error;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The body of the answer, unless its status is another than 200.
pub(crate) async fn request(
    method: &str,
    server: SocketAddr,
    path: &str,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut stream = TcpStream::connect(server).await?;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(format!("{method} {path}: {answer}").into()),
    }
}
