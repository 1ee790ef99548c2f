//! A service whose master is named by a sentinel.

use super::{LEASE, breaks, login, refused, rules, until_pinged, without_one};
use crate::server::{Server, soon};
use fairlock::{Client, Error};
use redis::RedisConnectionInfo;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};

const NAME: &str = "mine";

/// A sentinel that agrees with itself.
async fn sentinel_of(master: &Server) -> Server {
    let file = master.dir().join("sentinel.conf");
    let config = format!("sentinel monitor {NAME} 127.0.0.1 {} 1\n", master.port());
    std::fs::write(&file, config).unwrap();
    let program = [
        "redis-server".to_owned(),
        file.display().to_string(),
        "--sentinel".to_owned(),
    ];
    Server::start_program(&program, &[]).await
}

/// A user of that name may do this on the master, and that on the sentinel.
async fn serve(
    (master, on_master): (&Server, &[String]),
    (sentinel, on_sentinel): (&Server, &[String]),
    user: &str,
) -> Result<(), Error> {
    login(master, user, on_master).await;
    let url = login(sentinel, user, on_sentinel).await;
    let login = RedisConnectionInfo::default().set_username(user).set_password("SECRET");
    let login = SentinelNodeConnectionInfo::default().set_redis_connection_info(login);
    let sentinels = SentinelClient::build(vec![url], NAME, Some(login), SentinelServerType::Master);
    let builder = Client::builder().lease(LEASE).label(user);
    let client = builder.connect(sentinels.unwrap()).await?;
    let lock = client.rw_lock(user);
    let writing = lock.write().acquire_fair().await?;
    let waiting = tokio::spawn(lock.read().acquire_fair());
    master.until_queued(user, 1).await;
    writing.release().await?;
    waiting.await.expect("no panic")?.release().await?;
    until_pinged(sentinel, user, " sub=1 ").await;
    client.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn a_service_with_sentinel_needs_the_rules_for_it() {
    let master = Server::start_with(&["--acllog-max-len", "10000"]).await;
    let sentinel = sentinel_of(&master).await;
    let (_, page) = include_str!("../../../SECURITY.md")
        .split_once("On the sentinels it needs")
        .expect("rules");
    let (_, page) = page.split_once("ACL SETUSER service").expect("a block");
    let (rights, _) = page.split_once("```").expect("a block");
    let on_sentinel: Vec<_> = rights.split_whitespace().map(str::to_owned).collect();
    let on_master = [rules("service"), vec!["+role".to_owned()]].concat();

    let all = serve((&master, &on_master), (&sentinel, &on_sentinel), "service");
    soon("a service", all).await.expect("all rights");
    for node in [&master, &sentinel] {
        assert_eq!(refused(node, "service").await, [""; 0]);
    }
    let without_role = serve(
        (&master, &on_master[..on_master.len() - 1]),
        (&sentinel, &on_sentinel),
        "no-role",
    );
    assert!(breaks(&master, "no-role", without_role).await, "nothing needs +role");
    for (n, (right, rest)) in without_one(&on_sentinel).into_iter().enumerate() {
        let user = format!("service-{n}");
        let broken = breaks(
            &sentinel,
            &user,
            serve((&master, &on_master), (&sentinel, &rest), &user),
        );
        assert!(broken.await, "nothing needs {right}");
    }
}
