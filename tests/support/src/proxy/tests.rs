use super::*;
use crate::server::soon;

const MESSAGE: &[u8] = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nw\r\n";
const REPLY: &[u8] = b"*1\r\n:1\r\n";

/// A proxy with one connection: its client's end and its server's end.
async fn pair() -> (Proxy, TcpListener, [TcpStream; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap().port()).await;
    let ends = ends(&proxy, &listener).await;
    (proxy, listener, ends)
}

async fn ends(proxy: &Proxy, listener: &TcpListener) -> [TcpStream; 2] {
    let client = TcpStream::connect(("127.0.0.1", proxy.port)).await.unwrap();
    let (server, _) = soon("a connection", listener.accept()).await.unwrap();
    [client, server]
}

async fn comes(to: &mut TcpStream, what: &[u8]) {
    let mut read = vec![0; what.len()];
    soon("the bytes", to.read_exact(&mut read)).await.unwrap();
    assert_eq!(read, what);
}

#[tokio::test]
async fn a_message_does_not_wait_for_a_reply_that_is_held() {
    let (proxy, _listener, [mut client, mut server]) = pair().await;
    proxy.hold_replies(true);
    server.write_all(&[MESSAGE, REPLY].concat()).await.unwrap();
    comes(&mut client, MESSAGE).await;
    assert_eq!(proxy.messages(), 1);
    proxy.hold_replies(false);
    comes(&mut client, REPLY).await;
}

#[tokio::test]
async fn messages_vanish_from_between_replies() {
    let (proxy, _listener, [mut client, mut server]) = pair().await;
    proxy.drop_messages(true);
    server.write_all(&[REPLY, MESSAGE, REPLY].concat()).await.unwrap();
    comes(&mut client, &[REPLY, REPLY].concat()).await;
    assert_eq!(proxy.messages(), 1);
}

#[tokio::test]
async fn a_reply_is_lost_with_its_connection_and_what_came_before_it_is_not() {
    let (proxy, _listener, [mut client, mut server]) = pair().await;
    proxy.lose_replies(1);
    server
        .write_all(&[b"+OK\r\n", REPLY, b"+OK\r\n"].concat())
        .await
        .unwrap();
    let mut read = Vec::new();
    soon("the end", client.read_to_end(&mut read)).await.unwrap();
    assert_eq!(read, b"+OK\r\n");
    assert_eq!(proxy.replies_to_lose(), 0);
}

#[tokio::test]
async fn a_direction_that_lost_bytes_stays_silent_and_a_new_connection_does_not() {
    let (proxy, listener, [mut client, mut server]) = pair().await;
    proxy.swallow(true);
    // More than buffers take: the proxy has read some of it.
    client.write_all(&vec![b'x'; 32 << 20]).await.unwrap();
    proxy.swallow(false);
    client.write_all(b"after a hole").await.unwrap();
    client.shutdown().await.unwrap();
    let mut passed = Vec::new();
    soon("the end", server.read_to_end(&mut passed)).await.unwrap();
    assert_eq!(passed, b"");
    let [mut client, mut server] = ends(&proxy, &listener).await;
    client.write_all(b"passes").await.unwrap();
    comes(&mut server, b"passes").await;
}

#[tokio::test]
async fn a_cut_ends_in_order_or_by_a_reset() {
    for how in [Cut::Fin, Cut::Rst] {
        let (proxy, _listener, [mut client, _server]) = pair().await;
        proxy.end(how);
        let end = soon("the end", client.read(&mut [0; 1])).await;
        match how {
            Cut::Fin => assert_eq!(end.unwrap(), 0),
            Cut::Rst => assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

/// A late copy of a call: its client has closed the connection and sent it again over another one.
#[tokio::test]
async fn a_late_connection_is_overtaken_by_the_next_one_and_still_delivers_after_its_end() {
    let (proxy, listener, _ends) = pair().await;
    proxy.reorder(Duration::from_secs(1));
    // Each piece waits up to a second; the least of many first pieces comes before the greatest.
    let mut order = Vec::new();
    for attempt in 0..20_u8 {
        let [mut first, mut to_first] = ends(&proxy, &listener).await;
        let [mut second, mut to_second] = ends(&proxy, &listener).await;
        first.write_all(&[attempt]).await.unwrap();
        drop(first);
        second.write_all(&[attempt]).await.unwrap();
        let (mut a, mut b) = ([0], [0]);
        tokio::select! {
            read = to_first.read_exact(&mut a) => { read.unwrap(); order.push(1); comes(&mut to_second, &[attempt]).await }
            read = to_second.read_exact(&mut b) => { read.unwrap(); order.push(2); comes(&mut to_first, &[attempt]).await }
        }
        if order.contains(&1) && order.contains(&2) {
            return;
        }
    }
    panic!("none was overtaken: {order:?}");
}
